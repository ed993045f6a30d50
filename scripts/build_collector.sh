#!/usr/bin/env bash
# Builds the Collector of collector/manifest.yaml with the OpenTelemetry Collector builder, and prints where it is; needs
# Go, and two minutes the first time. Binaries are kept in the user's cache by the digest of the manifest, so that one is
# built again only when that changes. With --cached none is built: it fails where there is none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

builder=go.opentelemetry.io/collector/cmd/builder@v0.165.0
digest=$(sha256sum collector/manifest.yaml | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/otel-agent-replay/collector
folder=$cache/$digest
binary=$folder/agent-replay-collector
if [ ! -x "$binary" ]; then
  if [ "${1:-}" = --cached ]; then
    echo "The Collector is not built; run scripts/build_collector.sh." >&2
    exit 1
  fi
  if ! command -v go >/dev/null; then
    echo "Go is not installed here: the Collector cannot be built." >&2
    exit 1
  fi
  mkdir -p "$cache"
  scratch=$(mktemp -d "$cache/build.XXXXXX")
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
