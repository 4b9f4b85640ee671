#!/usr/bin/env bash
# Runs the quickstart's GRPO on a local Ray cluster of two nodes, and compares it with `ringside run`. While it runs, one
# worker is killed and one is added; then it is stopped by SIGTERM and resumed.
#
# Usage: tools/launch/test_ray.sh [STEPS]    default 60 steps; $PYTHON: a Python with ray (pip install ray)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tools/launch/test_common.sh
source tools/launch/test_common.sh

PYTHON=${PYTHON:-python3}
"$PYTHON" -c 'import ray' 2>/dev/null || die "$PYTHON has no ray; set PYTHON to one that has"
make_folder
trap remove_folder EXIT
prepare "${1:-60}"
say "Ray, two nodes"
"$PYTHON" tools/launch/ray_cluster_test.py "$folder/ray_run" "${recipe[@]}"
python3 tools/launch/compare_runs.py --workers-differ "$folder/run" "$folder/ray_run"
