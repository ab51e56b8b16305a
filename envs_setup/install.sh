#!/bin/bash
# Installs a lock (default: requirements.lock), the BFCL wheel and this package into a virtual environment: with uv
# where pip can install uv (a third of pip's CPU time), else with pip.
#
#   envs_setup/install.sh VENV [LOCK]
#
# uv takes the build of torch that fits the machine (CPU or CUDA) from PyTorch's own index, unless pip is configured
# with a folder of wheels (find-links), that index cannot be reached, or there is Slurm: its login node may have no GPU.
# Pip takes the default build, which is for CUDA.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1/bin/python
lock=${2:-requirements.lock}
links=${PIP_FIND_LINKS:-$("$python" -m pip config get global.find-links 2>/dev/null || true)}
version() { grep -E "^($1)==" "${2:-$lock}"; }

if "$python" -m pip install --quiet "$(version uv requirements.lock)"; then
  export UV_FIND_LINKS=${UV_FIND_LINKS:-$links} UV_INDEX=${UV_INDEX:-${PIP_EXTRA_INDEX_URL:-}}
  export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-}}
  if [ -z "$UV_DEFAULT_INDEX" ]; then unset UV_DEFAULT_INDEX; fi
  if [ -n "${PIP_NO_INDEX:-}" ]; then export UV_NO_INDEX=1; fi
  install() { "$python" -m uv pip install --quiet --python "$python" "$@"; }
else
  install() { "$python" -m pip install --quiet "$@"; }
fi

# torch first: DeepSpeed needs it to be built, and everything else fits around it.
if [ -z "$links" ] && [ -n "${UV_FIND_LINKS+uv}" ] && ! command -v sbatch >/dev/null; then
  install --torch-backend=auto "$(version torch)" || echo "install.sh: PyTorch's index cannot be reached; taking the default build" >&2
fi
version 'torch|setuptools|wheel' | install --requirement /dev/stdin
grep -v "^uv==" "$lock" | install --no-build-isolation --requirement /dev/stdin
install --no-deps --require-hashes --requirement envs_setup/bfcl.lock
install --no-deps --no-build-isolation --editable .
