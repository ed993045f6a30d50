#!/usr/bin/env bash
# Builds the Collector of collector/manifest.yaml with the OpenTelemetry Collector builder; needs Go. Prints where the
# binary is: .cache/collector/DIGEST, by the digest of the manifest, so that it is built again only when that changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

builder=go.opentelemetry.io/collector/cmd/builder@v0.165.0
digest=$(sha256sum collector/manifest.yaml | cut -c1-16)
folder=$PWD/.cache/collector/$digest
binary=$folder/agent-replay-collector
if [ ! -x "$binary" ]; then
  if ! command -v go >/dev/null; then
    echo "Go is not installed here: the Collector cannot be built." >&2
    exit 1
  fi
  mkdir -p "$PWD/.cache/collector"
  scratch=$(mktemp -d "$PWD/.cache/collector/build.XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  cp collector/manifest.yaml "$scratch/manifest.yaml"
  echo "  output_path: $scratch/out" >"$scratch/output"
  sed -i "/^dist:/r $scratch/output" "$scratch/manifest.yaml"
  CGO_ENABLED=0 go run "$builder" --config "$scratch/manifest.yaml" >"$scratch/log" 2>&1 || { tail -40 "$scratch/log" >&2; exit 1; }
  mkdir -p "$folder"
  mv "$scratch/out/agent-replay-collector" "$binary.new"
  mv "$binary.new" "$binary"
fi
echo "$binary"
