#!/usr/bin/env bash
# Runs every test marked `cuda`, then the figures of gpu_check.py, on one CUDA device.
#
# Usage: tests/gpu_check.sh         (or: OUT=folder PYTHON=python3.12 tests/gpu_check.sh)
#
# gnnprof need not be installed: src is put on PYTHONPATH. Takes at most eight minutes. A short
# table is printed last; gpu_check.json and pytest.xml go to $OUT when that is set.
set -u -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
export PYTHONPATH="src:tests${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 KINETO_LOG_LEVEL=99

missing=$("$python" -c '
import importlib.util as util
needed = ("torch", "torch_geometric", "numpy", "tabulate", "tqdm", "pytest")
print(" ".join(name for name in needed if util.find_spec(name) is None))')
if [ -n "$missing" ]; then
    echo "$python lacks: $missing; install it, or bring its wheel and name the folder in PYTHONPATH"
    exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
junit="${OUT:-$scratch}/pytest.xml"

# Warnings are no errors here: this run is about the device, on whatever torch is installed.
timeout 300 "$python" -m pytest -m cuda -q -W default -p no:cacheprovider \
    --continue-on-collection-errors --junitxml="$junit" tests
tests=$?

timeout 160 "$python" tests/gpu_check.py --junit "$junit"
figures=$?
[ "$tests" -eq 0 ] && [ "$figures" -eq 0 ]
