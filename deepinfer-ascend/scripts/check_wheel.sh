#!/usr/bin/env bash
# An optional CI job, without an NPU: `check_wheel.sh FOLDER [report.json]`.
# Installs torch_npu into an environment of its own in FOLDER, where it can break nothing else, puts
# stub libraries in the place of the toolkit, and compares this plugin with it. 1 GB, some minutes.
set -euo pipefail
folder=$(realpath -m "$1")
report=${2:+$(realpath -m "$2")}
root=$(realpath "$(dirname "$0")/../..")
release=${TORCH_NPU:-2.13.0}
python=$folder/bin/python

test -x "$python" || python3 -m venv "$folder"
"$python" -m pip install --quiet "torch==$release" "torch_npu==$release" "$root/deepinfer-core" "$root/deepinfer-ascend"
"$python" "$root/deepinfer-ascend/scripts/stub_libraries.py" "$folder/stubs"
LD_LIBRARY_PATH="$folder/stubs" "$python" "$root/deepinfer-ascend/scripts/check_wheel.py" $report
