#!/usr/bin/env bash
# Our client of vLLM against a real vLLM on the CPU (.env/vllm, about 8 GB, installed on the first run): completions, log-probs
# recomputed with transformers, also for prompts with images; weights of another model loaded from disk between pause and
# resume; a teacher
# on the server; and weights over the bridge, by the worker extension and by vLLM's own routes (ringside_bridge is installed into a
# temporary folder). A few minutes; not part of tools/test.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/setup.sh --oracle --vllm
ninja -C build probe_vllm probe_vllm_images ranks_in_memory ringside
export VLLM_PYTHON=$PWD/.env/vllm/bin/python
.env/oracle/bin/python tests/oracle/vllm_client.py
.env/oracle/bin/python tests/oracle/vllm_images.py
.env/oracle/bin/python tests/oracle/vllm_teacher.py
.env/oracle/bin/python tests/oracle/vllm_harness.py
.env/oracle/bin/python tests/oracle/vllm_extension.py
.env/oracle/bin/python tests/oracle/server_grpo.py vllm
.env/oracle/bin/python tests/oracle/server_grpo.py vllm --weights engine --steps 20
.env/oracle/bin/python tests/oracle/server_grpo.py vllm --weights adapter
.env/oracle/bin/python tests/oracle/vllm_adapters.py
