#!/bin/bash
# up.sh STATE: bring up a Slurm of two nodes with eight fake H100 each on this machine, from Debian's packages, or from
# the folder COEVOLVE_SLURM that newer.sh made.
# Needs root. All it writes, key and sockets included, lies in the folder STATE; ports are free ones of the loopback
# device, so a second one may run beside it. Up already: nothing happens. Then: . STATE/environment
set -euo pipefail

# A machine that cannot have a Slurm: exit status 2. A Slurm that does not come up: 1.
refuse() { echo "up.sh: $*" >&2; exit 2; }
fail() { echo "up.sh: $*" >&2; exit 1; }

install_packages() {
  command -v munged slurmctld slurmd sbatch >/dev/null && return
  echo "up.sh: installing Debian's slurm-wlm and munge"
  # RUNLEVEL=1: the packages' own services stay down
  (apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    slurm-wlm munge) >"$state/apt.log" 2>&1 ||
    refuse "the packages slurm-wlm and munge cannot be installed (see $state/apt.log); install them, then run again."
}

free_ports() {
  python3 - <<'PYTHON'
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(s.getsockname()[1] for s in sockets))
PYTHON
}

write_configuration() {
  read -r ctld n1 n2 < <(free_ports)
  sed -e "s#@STATE@#$state#g; s#@HOST@#$(hostname -s)#g" \
    -e "s#@CTLD_PORT@#$ctld#; s#@N1_PORT@#$n1#; s#@N2_PORT@#$n2#" "$here/slurm.conf.in" >"$state/slurm.conf"
  # /dev/null's twins stand for GPUs: Slurm numbers them and sets CUDA_VISIBLE_DEVICES
  for gpu in "$state"/gpu{0..7}; do [ -c "$gpu" ] || mknod "$gpu" c 1 3; done
  [ -z "${COEVOLVE_SLURM:-}" ] || echo "PluginDir=$(echo "$COEVOLVE_SLURM"/root/usr/lib/*/slurm-wlm)" >>"$state/slurm.conf"
  echo "NodeName=n[1-2] Name=gpu Type=h100 File=$state/gpu[0-7]" >"$state/gres.conf"
}

write_environment() {
  # Snakemake's job steps take SLURM_CONF away before they call srun: this srun brings it back
  mkdir -p "$state/bin"
  [ -z "${COEVOLVE_SLURM:-}" ] || ln -sf "$COEVOLVE_SLURM"/bin/* "$state/bin"
  rm -f "$state/bin/srun"
  printf '#!/bin/sh\nSLURM_CONF=%q exec %q "$@"\n' "$SLURM_CONF" "$(command -v srun)" >"$state/bin/srun"
  chmod +x "$state/bin/srun"
  echo "export SLURM_CONF='$SLURM_CONF' PATH='$state/bin':\"\$PATH\"" >"$state/environment"
}

start_munge() {
  [ -s "$state/munge.key" ] || (umask 077 && dd if=/dev/urandom of="$state/munge.key" bs=128 count=1 status=none)
  # --force: a folder of a temporary directory is not as closed as munge would like
  munged --force --socket="$state/munge.socket" --key-file="$state/munge.key" --pid-file="$state/munged.pid" \
    --log-file="$state/munged.log" --seed-file="$state/munged.seed" >"$state/munged.out" 2>&1 ||
    fail "munged did not start; see $state/munged.out."
}

all_idle() { [ "$(sinfo --noheader --Node --states=idle --partition=h100 --format=%N 2>/dev/null | wc -l)" = 2 ]; }

[ $# = 1 ] || refuse "give the folder for the cluster's state: up.sh STATE."
[ "$(id -u)" = 0 ] || refuse "Slurm's daemons need root here; run as root."
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
state=$(cd "$1" && pwd)
[ ${#state} -lt 80 ] || refuse "$state: too long a path for sockets; choose a shorter one."
install_packages
PATH=${COEVOLVE_SLURM:+$COEVOLVE_SLURM/bin:}$PATH

export SLURM_CONF=$state/slurm.conf
if [ -s "$SLURM_CONF" ] && scontrol ping 2>/dev/null | grep -q "is UP"; then
  echo "up.sh: $state is up already"
  exit 0
fi
"$here/down.sh" "$state"
mkdir -p "$state/slurmctld" "$state/slurmd.n1" "$state/slurmd.n2"
write_configuration
write_environment
start_munge
slurmctld -c -f "$SLURM_CONF"
for node in n1 n2; do slurmd -N $node -f "$SLURM_CONF"; done
for _ in $(seq 100); do
  all_idle && break
  sleep 0.1
done
all_idle || fail "the nodes did not come up within 10 s; see $state/slurmctld.log and $state/slurmd.n1.log."
sinfo --Node --format="%N %P %t %c %m %G"
