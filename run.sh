#!/usr/bin/env bash
# The table of contents: set-up, then the run.
#
#   bash run.sh [flags]               train; the same command again goes on where it was   (bash run.sh --help)
#   bash run.sh test [pytest flags]   lint and tests; with flags only pytest
#
# Set-up happens once: .venv is made unless a virtual or conda environment is active, and requirements.txt is
# installed into it whenever that file has changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

fail() { echo "error: $*" >&2; exit 2; }

is_python_311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

# 1. The Python environment: the active one, else .venv
environment="${VIRTUAL_ENV:-${CONDA_PREFIX:-$PWD/.venv}}"
python="$environment/bin/python"
stamp="$environment/.sapo-requirements"
wanted="$(sha256sum <requirements.txt)"
installed="$(cat "$stamp" 2>/dev/null || true)"
if [ "$installed" != "$wanted" ]; then
    for tool in g++ cmake; do
        command -v "$tool" >/dev/null ||
            fail "$tool not found, and the ALFWorld engine is built with it; install it (Debian: apt install g++ cmake)"
    done
fi
if [ "$environment" != "$PWD/.venv" ]; then
    is_python_311 "$python" ||
        fail "the active environment $environment has no Python 3.11; activate one that has, or deactivate it and let run.sh make .venv"
elif ! "$python" -m pip --version >/dev/null 2>&1; then
    base=""
    for candidate in python3.11 python3 python; do
        if command -v "$candidate" >/dev/null && is_python_311 "$candidate"; then base="$candidate"; break; fi
    done
    [ -n "$base" ] ||
        fail "Python 3.11 not found; install it (Debian 12: apt install python3.11 python3.11-venv), or activate an environment that has it"
    "$base" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$base cannot make virtual environments; install its venv module (Debian: apt install python3.11-venv)"
    echo "making .venv with $("$base" --version)"
    rm -rf .venv
    "$base" -m venv .venv
    installed=""
fi

# 2. The packages, when requirements.txt is another than was installed
if [ "$installed" != "$wanted" ]; then
    echo "installing requirements.txt into $environment (two packages are built from source: about six minutes)"
    "$python" -m pip install --disable-pip-version-check -r requirements.txt ||
        fail "requirements.txt could not be installed (see above); mend the cause and start the same command again"
    echo "$wanted" >"$stamp"
fi
export PATH="$environment/bin:$PATH"

# 3. The tests, or the run
if [ "${1:-}" = test ]; then
    shift
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false
    if [ $# -eq 0 ]; then
        "$python" -m ruff check .
        "$python" -m ruff format --check .
    fi
    exec "$python" -m pytest "$@"
fi
exec "$python" -m pipeline "$@"
