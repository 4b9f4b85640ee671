#!/usr/bin/env bash
# Our environments of packages (rollout.environment) beside the real packages: reasoning-gym, TextArena, OpenEnv, verifiers
# (.env/environments, 1 GB, installed on the first run). Each recipe of recipes/environments takes a warm start and three
# steps, and every recorded rollout is played again by the package alone. Seven minutes; not part of tools/test.sh.
#
# Usage: tools/test_environments.sh [reasoning_gym|textarena|openenv|verifiers ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/setup.sh --no-tests --environments
RINGSIDE=$PWD/build/ringside .env/environments/bin/python tests/oracle/environments.py "$@"
