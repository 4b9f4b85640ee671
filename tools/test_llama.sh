#!/usr/bin/env bash
# Our conversion to GGUF and our client of llama.cpp's server against a real one on the CPU (.env/llama, 0.2 GB, installed on
# the first run): log-probs beside transformers', and GRPO with the server started anew for every version, also where tokens
# are parts of characters and llama.cpp leaves out log-probs; and an agent behind the gateway. A few minutes; not part of
# tools/test.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/setup.sh --oracle --llama
export LLAMA_PYTHON=$PWD/.env/llama/bin/python
.env/oracle/bin/python tests/oracle/llama_server.py
.env/oracle/bin/python tests/oracle/server_grpo.py llama_cpp --steps 20
.env/oracle/bin/python tests/oracle/server_grpo.py llama_cpp --steps 20 --byte-texts
.env/oracle/bin/python tests/oracle/llama_harness.py
