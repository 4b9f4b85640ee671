#!/usr/bin/env bash
# Runs the quickstart's GRPO under a real Slurm of one node, and compares it with `ringside run`.
#
# Usage: tools/launch/test_slurm.sh [STEPS]    default 20 steps. Needs root and Debian's slurm-wlm (apt-get install slurm-wlm).
# Starts its own munged, slurmctld and slurmd with files in a temporary folder, and stops them at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tools/launch/test_common.sh
source tools/launch/test_common.sh

start_slurm() {
  local node cpus
  node=$(hostname -s)
  cpus=$(nproc)
  mkdir -p "$folder"/slurm/{state,spool}
  chmod 755 "$folder" "$folder/slurm"
  dd if=/dev/urandom bs=1 count=1024 status=none >"$folder/slurm/munge.key"
  chmod 400 "$folder/slurm/munge.key"
  munged --force --socket="$folder/slurm/munge.socket" --key-file="$folder/slurm/munge.key" --num-threads=2 \
    --pid-file="$folder/slurm/munged.pid" --log-file="$folder/slurm/munged.log" --seed-file="$folder/slurm/munge.seed"
  stop_later munged
  cat >"$folder/slurm/slurm.conf" <<CONF
ClusterName=ringside
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/slurm/munge.socket
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
StateSaveLocation=$folder/slurm/state
SlurmdSpoolDir=$folder/slurm/spool
SlurmctldPidFile=$folder/slurm/slurmctld.pid
SlurmdPidFile=$folder/slurm/slurmd.pid
SlurmctldLogFile=$folder/slurm/slurmctld.log
SlurmdLogFile=$folder/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
NodeName=$node NodeAddr=127.0.0.1 CPUs=$cpus State=UNKNOWN
PartitionName=all Nodes=$node Default=YES OverSubscribe=FORCE:4
CONF
  export SLURM_CONF=$folder/slurm/slurm.conf
  slurmctld -f "$SLURM_CONF"
  stop_later slurmctld
  slurmd -f "$SLURM_CONF" -N "$node"
  stop_later slurmd
  local i
  for ((i = 0; i < 60; ++i)); do
    [[ $(sinfo -h -o %t 2>/dev/null) == idle ]] && return
    sleep 0.5
  done
  cat "$folder"/slurm/*.log >&2
  die "the node did not become idle within 30 s"
}

stop_later() { daemons+=("$folder/slurm/$1.pid"); }

stop_slurm() {
  local file
  for file in "${daemons[@]}"; do
    [[ -f $file ]] && kill "$(cat "$file")" 2>/dev/null || true
  done
}

daemons=()
make_folder
trap 'stop_slurm; remove_folder' EXIT
prepare "${1:-20}"
start_slurm
say "sbatch"
sbatch --wait --nodes 1 --ntasks 2 --output "$folder/slurm.log" tools/launch/ringside.sbatch "${recipe[@]}" \
  --run-dir "$folder/slurm_run" || { cat "$folder/slurm.log" >&2; die "the job failed"; }
python3 tools/launch/compare_runs.py "$folder/run" "$folder/slurm_run"
