#!/bin/bash
#SBATCH --job-name=coevolve_main --output=coevolve_main.log --open-mode=append
#SBATCH --cpus-per-task=2 --mem=8G --time=1-00:00:00 --signal=B:USR1@300 --requeue
# Snakemake's main process as a job: `sbatch profiles/main.sh`, with Snakemake's options behind it (default: --profile
# slurm). Five minutes before its time limit it stops the run, as Ctrl-C does, and goes back into the queue under the
# same number; then trainings continue from their checkpoints and rollouts from their episodes.
cd "$SLURM_SUBMIT_DIR" || exit
job=$SLURM_JOB_ID
[ ! -f .venv/bin/activate ] || . .venv/bin/activate
# Snakemake is to submit jobs, and is no step of this one.
unset $(compgen -e | grep '^SLURM_' | grep -v '^SLURM_CONF$')
[ $# -gt 0 ] || set -- --profile slurm
set -m # a process group of its own, which does not ignore SIGINT
snakemake "$@" &
main=$!
trap 'stopped=1; kill -INT -- "-$main"' USR1
wait "$main"
status=$?
if [ -n "$stopped" ]; then
  wait "$main"
  echo "main.sh: job $job goes back into the queue"
  scontrol requeue "$job"
fi
exit "$status"
