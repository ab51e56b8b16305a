#!/bin/bash
# newer.sh FOLDER: unpack the Slurm of Debian's unstable suite into FOLDER, with a libc of its own; the system's stays.
# Needs root. Then: COEVOLVE_SLURM=FOLDER pytest tests/slurm
set -euo pipefail

[ $# = 1 ] || { echo "newer.sh: give the folder to make: newer.sh FOLDER." >&2; exit 2; }
mkdir -p "$1/bin"
folder=$(cd "$1" && pwd)
root=$folder/root
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap patchelf
# A copy of the archive may be older than its index says it may be.
mmdebstrap --aptopt='Acquire::Check-Valid-Until "false"' --variant=extract --include=slurm-wlm unstable "$root"
library=$(echo "$root"/usr/lib/*-linux-gnu)
for program in "$root"/usr/bin/s* "$root"/usr/sbin/slurm*; do
  name=$(basename "${program%-wlm}")
  readelf --dynamic "$program" 2>/dev/null | grep -q libslurm || continue
  patchelf --set-interpreter "$(echo "$library"/ld-linux-*)" --force-rpath --set-rpath "$library:$library/slurm-wlm" "$program"
  ln -sf "$program" "$folder/bin/$name"
done
# slurmd starts the system's slurmstepd unless it is told another. down.sh knows it by its name.
rm "$folder/bin/slurmd"
ln -sf slurmd-wlm "$root/usr/sbin/slurmd"
printf '#!/bin/sh\nexec %q -d %q "$@"\n' "$root/usr/sbin/slurmd" "$root/usr/sbin/slurmstepd-wlm" >"$folder/bin/slurmd"
chmod +x "$folder/bin/slurmd"
"$folder/bin/slurmctld" -V
