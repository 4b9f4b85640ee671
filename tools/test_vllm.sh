#!/usr/bin/env bash
# Our client of vLLM against a real vLLM on the CPU (.env/vllm, about 8 GB, installed on the first run): completions, log-probs
# recomputed with transformers, weights of another model loaded from disk between pause and resume. A few minutes; not
# part of tools/test.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/setup.sh --oracle --vllm
ninja -C build probe_vllm
VLLM_PYTHON=$PWD/.env/vllm/bin/python exec .env/oracle/bin/python tests/oracle/vllm_client.py
