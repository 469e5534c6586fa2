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

# ONNX: every model, run by another runtime, forecasts what we forecast.
npm --prefix python/onnx ci --ignore-scripts --silent --prefer-offline
"$work/venv/bin/loadstar" data generate --meters 3 --days 120 -o "$work/data" >/dev/null
for model in dense bose2023 bose2024 fekri2023; do
	run=$work/$model
	printf 'name: %s\nmodel: {name: %s, targets: 3}\nalgorithm: fedavg\nrounds: 5\n' $model $model >"$work/plan.yaml"
	bin/loadstar simulate "$work/plan.yaml" --data "$work/data" --out "$run" --quiet --baseline none >/dev/null
	bin/loadstar forecast "$run" --data "$work/data" --inputs "$run/inputs.safetensors" --quiet
	bin/loadstar model export "$run" --onnx "$run/onnx" >/dev/null
	/usr/bin/python3 -c 'import glob, onnx, sys
for f in glob.glob(sys.argv[1] + "/*.onnx"): onnx.checker.check_model(onnx.load(f), full_check=True)' "$run/onnx"
	echo "ONNX, $model: $(node python/onnx/compare.mjs "$run/inputs.safetensors" "$run/onnx")"
done

"$work/venv/bin/pip" uninstall --quiet --yes loadstar
[ ! -e "$work/venv/bin/loadstar" ]
echo "python-test: $(basename "$wheel"), $(($(stat -c %s "$wheel") / 1000000)) MB"
