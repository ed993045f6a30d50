# Sourced by the CI scripts: a virtual environment of the project's own, with what tests and linters need.
# Sets $venv and $python. Made anew when pyproject.toml, what is compiled, the interpreter or the place of the checkout
# changes.

python=
for candidate in "${PYTHON:-}" python3.11 python3 python; do
  if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "There is no Python 3.11 or newer here; install one, or name it in PYTHON." >&2
  exit 1
fi

key=$("$python" -c '
import hashlib, pathlib, sys
files = ["pyproject.toml", "hatch_build.py", *sorted(pathlib.Path("otel_agent_replay").rglob("*.c"))]
seed = b"".join(pathlib.Path(each).read_bytes() for each in files)
seed += f"{sys.version}{sys.prefix}{pathlib.Path.cwd()}".encode()
print(hashlib.sha256(seed).hexdigest()[:16])
')
venv=$PWD/.cache/venv/$key
if [ ! -e "$venv/complete" ]; then
  rm -rf "$PWD/.cache/venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[test,lint]'
  touch "$venv/complete"
fi
unset PYTHONPATH PYTHONHOME

step() {
  printf '\n== %s (after %d s)\n' "$1" "$SECONDS"
}
