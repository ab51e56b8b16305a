#!/bin/bash
# down.sh STATE: stop what up.sh STATE started, by process id; jobs first, so that none outlives its cluster.
set -euo pipefail

[ $# = 1 ] || { echo "down.sh: give the folder of the cluster's state: down.sh STATE." >&2; exit 2; }
state=$1
export SLURM_CONF=$state/slurm.conf PATH=$state/bin:$PATH

# alive DAEMON PIDFILE: whether the file's process runs and is that daemon
alive() { [ "$(cat "/proc/$(cat "$2" 2>/dev/null)/comm" 2>/dev/null)" = "$1" ]; }

cancel_jobs() {
  scancel --user="$(id -un)" 2>/dev/null || true
  for _ in $(seq 100); do
    [ -z "$(squeue --noheader --states=running,completing 2>/dev/null)" ] && return
    sleep 0.1
  done
}

# stop DAEMON PIDFILE: ask it to end, wait up to 10 s
stop() {
  alive "$1" "$2" || return 0
  kill "$(cat "$2")"
  for _ in $(seq 100); do
    alive "$1" "$2" || return 0
    sleep 0.1
  done
  kill -KILL "$(cat "$2")"
}

if alive slurmctld "$state/slurmctld.pid"; then cancel_jobs; fi
for node in n1 n2; do stop slurmd "$state/slurmd.$node.pid"; done
stop slurmctld "$state/slurmctld.pid"
stop munged "$state/munged.pid"
