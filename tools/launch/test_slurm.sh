#!/usr/bin/env bash
# Runs the quickstart's GRPO under a real Slurm of one node, to its end and with a stop, and compares it with `ringside run`.
#
# Usage: tools/launch/test_slurm.sh [STEPS]    default 40 steps. Needs root and Debian's slurm-wlm (apt-get install slurm-wlm).
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
  local file pid
  for file in "${daemons[@]}"; do
    [[ -f $file ]] || continue
    pid=$(cat "$file")
    kill "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
  done
}

daemons=()
make_folder
trap 'stop_slurm; remove_folder' EXIT
prepare "${1:-40}"
start_slurm
submit() { # RUN_DIR
  sbatch --parsable --nodes 1 --ntasks 2 --output "$1.log" tools/launch/ringside.sbatch "${recipe[@]}" --run-dir "$1"
}

steps_of() { if [[ -f $1/metrics.jsonl ]]; then wc -l <"$1/metrics.jsonl"; else echo 0; fi; }

# wait_for_job JOB: until it has left the queue.
wait_for_job() {
  while [[ -n $(squeue -h -j "$1" 2>/dev/null) ]]; do sleep 0.2; done
}

say "one job to its end"
wait_for_job "$(submit "$folder/whole")"
say "a job that gets SIGTERM, as before its time limit, and one that resumes"
job=$(submit "$folder/stopped")
until (($(steps_of "$folder/stopped") >= 3)); do sleep 0.1; done
scancel --signal TERM "$job"
wait_for_job "$job"
(($(steps_of "$folder/stopped") < ${1:-40})) || die "the job ended before it was stopped; take more steps"
ls "$folder"/stopped/checkpoints/step-* >/dev/null || die "the stopped job saved nothing"
wait_for_job "$(submit "$folder/stopped")"
python3 tools/launch/compare_runs.py "$folder/run" "$folder/whole" "$folder/stopped" || {
  cat "$folder"/{whole,stopped}.log >&2
  die "the figures differ"
}
