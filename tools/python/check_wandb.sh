#!/usr/bin/env bash
# Forwards a small run's metrics to a real wandb in its offline mode, and reads them back from the
# file that wandb wrote. Installs wandb into a scratch environment. Run by hand.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

main() {
  local scratch
  scratch=$(mktemp -d)
  trap "rm -rf '$scratch'" EXIT
  python3 -m venv "$scratch/env"
  cp -r tools/python "$scratch/follower"  # pip leaves its build folders beside the sources
  "$scratch/env/bin/pip" install --quiet "$scratch/follower[wandb]" PyYAML
  mkdir "$scratch/run"
  printf 'seed: 7\ntrain:\n  steps: 3\n' >"$scratch/run/config.yaml"
  local step
  for step in 1 2 3; do
    echo "{\"step\": $step, \"reward\": 0.$step, \"rewards/exact/mean\": 0.5, \"loss\": null, \"non_finite\": {\"loss\": \"nan\"}}"
  done >"$scratch/run/metrics.jsonl"
  WANDB_MODE=offline WANDB_DIR=$scratch WANDB_SILENT=true \
    "$scratch/env/bin/ringside-follow" "$scratch/run" --to wandb --project check --once
  "$scratch/env/bin/python" - "$scratch" <<'PYTHON'
import json, pathlib, struct, sys
from wandb.proto import wandb_internal_pb2

def records(data):
    """The records of a LevelDB log after its 7 bytes of header: blocks of 32 KiB, parts of (crc, length, type)."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, last
            yield parts
            parts = b""

path = next(pathlib.Path(sys.argv[1]).glob("wandb/offline-run-*/run-*.wandb"))
rows, config = [], {}
for data in records(path.read_bytes()):
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    if record.WhichOneof("record_type") == "history":
        rows.append({(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item})
    if record.WhichOneof("record_type") == "run":
        config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
assert [row["step"] for row in rows] == [1, 2, 3], rows
assert [row["reward"] for row in rows] == [0.1, 0.2, 0.3], rows
assert all("loss" not in row and row["rewards/exact/mean"] == 0.5 for row in rows), rows
assert config["seed"] == 7 and config["train"] == {"steps": 3}, config
print("wandb holds the 3 steps, their metrics and the configuration")
PYTHON
}

main "$@"
