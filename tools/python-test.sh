#!/usr/bin/env bash
# Builds the wheel of the Python package, installs it in a clean environment without a
# network, and runs its tests and its notebook there. NumPy, pandas and the notebook's
# runner are Debian's. 'make python-test' calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
unset LOADSTAR PYTHONPATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
platform=linux-$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
version=$(git describe --tags --always --dirty)
for folder in one two; do # the same bytes twice
	wheel=$(SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) /usr/bin/python3 tools/wheel.py --binary bin/loadstar --platform "$platform" --version "$version" --out "$work/$folder")
done
cmp "$work"/one/*.whl "$work"/two/*.whl
/usr/bin/python3 -m venv --system-site-packages "$work/venv"
"$work/venv/bin/pip" install --quiet --no-index "$wheel"
python=$work/venv/bin/python
"$python" -c 'import loadstar, sys; assert loadstar.command().startswith(sys.prefix), loadstar.command()'
"$work/venv/bin/loadstar" version
(cd "$work" && "$python" -m unittest discover -s "$OLDPWD/python/test" -q)
"$python" python/notebook/execute.py python/notebook/first-forecast.ipynb "$work/first-forecast.ipynb"
"$work/venv/bin/pip" uninstall --quiet --yes loadstar
[ ! -e "$work/venv/bin/loadstar" ]
echo "python-test: $(basename "$wheel"), $(($(stat -c %s "$wheel") / 1000000)) MB"
