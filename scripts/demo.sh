#!/usr/bin/env bash
# The main job from nothing: build a tiny checkpoint and a toy data set, then evaluate, train and evaluate.
#
#     scripts/demo.sh MOTET FOLDER [a.b=value ...]
#
# SEED (0) seeds the checkpoint, the data and the run.
set -euo pipefail

motet=$1
folder=$2
shift 2
seed=${SEED:-0}

rm -rf "$folder"
echo "building a tiny Qwen3-Omni checkpoint with a short supervised start (about a minute and a half) ..."
"$motet" tiny "$folder/tiny" --seed "$seed"
echo "building a toy data set of images, sounds and videos ..."
"$motet" data toy "$folder/toy" --seed "$seed"
"$motet" train "$(dirname "$0")/../recipes/tiny.toml" run_dir="$folder/run" seed="$seed" model.path="$folder/tiny" \
    data.train="$folder/toy/train.jsonl" data.heldout="$folder/toy/heldout.jsonl" "$@"
