#!/bin/bash
# The server InterCodeSQL runs on, unpacked into the kit's cache: no Docker, no root, nothing of the system is touched.
# MySQL comes from Debian's unstable suite with a libc of its own.
#
#   COEVOLVE_CACHE    the kit's cache (default: /var/cache/coevolve for root, else ~/.cache/coevolve)
#   COEVOLVE_SERVERS  where to unpack (default: `servers` in the cache)
#   COEVOLVE_MIRROR   a directory with mysql/*.deb, taken instead of the network
#
# A server that is there already is left alone. `manifest.tsv` beside it names package, version and sha256.
set -uo pipefail
umask 022

if [ -z "${COEVOLVE_CACHE:-}" ]; then
  if [ "$(id -u)" = 0 ]; then COEVOLVE_CACHE=/var/cache/coevolve; else COEVOLVE_CACHE=~/.cache/coevolve; fi
fi
case $COEVOLVE_CACHE in /*) ;; *) COEVOLVE_CACHE=$PWD/$COEVOLVE_CACHE ;; esac
SERVERS=${COEVOLVE_SERVERS:-$COEVOLVE_CACHE/servers}
case $SERVERS in /*) ;; *) SERVERS=$PWD/$SERVERS ;; esac
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

say() { echo "mysql.sh: $*" >&2; }

# The archives this machine's own sources name for its own release, one per line.
sites() { apt-get update --print-uris 2>/dev/null | sed -n "s|^'\(.*\)/dists/$1/InRelease' .*|\1|p"; }

# apt with a state of its own under $APT, which holds nothing but a Perl that no server needs at run time. A site's copy
# of the archive may be older than its index says it may be; its signature is checked all the same.
private_apt() {
  apt-get -qq -o Dir::State="$APT" -o Dir::State::status="$APT/status" -o Dir::Cache="$APT" \
    -o Dir::Etc::sourcelist="$APT/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
    -o Dir::Log="$APT" -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" -o APT::Update::Error-Mode=any \
    -o Acquire::Check-Valid-Until=false "$@"
}

new_apt() {
  APT=$1
  mkdir -p "$APT"/lists/partial "$APT"/archives/partial
  printf '%s\n' 'Package: perl' 'Status: install ok installed' 'Version: 999' \
    "Architecture: $(dpkg --print-architecture)" 'Multi-Arch: allowed' 'Maintainer: none' 'Description: stands in' \
    > "$APT/status"
}

# MySQL's package and all it depends on, as .debs in directory $1.
download() {
  local codename site
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  new_apt "$1/apt"
  for site in $(sites "$codename"); do
    echo "deb [signed-by=$KEYRING] $site unstable main" > "$APT/sources.list"
    private_apt update && private_apt install --yes --no-install-recommends --download-only mysql-server-core &&
      mv "$APT"/archives/*.deb "$1" && rm -r "$APT" && return
  done
  [ -n "${site:-}" ] || echo "apt's sources name no archive for \`$codename\`"
  return 1
}

# The .debs of directory $1 as one tree in directory $2, without programs and texts that a server does not read.
unpack() {
  local deb
  mkdir -p "$2"/usr/{lib,lib64} && ln -s usr/lib usr/lib64 "$2" || return
  for deb in "$1"/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$2" --no-same-owner --keep-directory-symlink \
      --exclude='./usr/bin/*' --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' || return
    dpkg-deb --show --showformat='${Package}\t${Version}\t' "$deb" && sha256sum < "$deb" | cut -d ' ' -f 1 || return
  done > "$2/manifest.tsv"
}

# The server, made aside, then renamed.
server() {
  local aside=$SERVERS/.mysql.tmp program=usr/sbin/mysqld debs
  [ -e "$SERVERS/mysql/$program" ] && return
  rm -rf "$aside" "${SERVERS:?}/mysql" && mkdir -p "$aside/debs" || return
  debs=${COEVOLVE_MIRROR:-}/mysql
  if ! compgen -G "$debs/*.deb" > /dev/null; then
    debs=$aside/debs
    download "$debs" > "$aside/log" 2>&1 || { tail -n 3 "$aside/log" >&2; rm -rf "$aside"; return 1; }
  fi
  unpack "$debs" "$aside/tree" && [ -e "$aside/tree/$program" ] && mv "$aside/tree" "$SERVERS/mysql"
  local failed=$?
  rm -rf "$aside"
  return $failed
}

unpacked() { [ -d "$SERVERS/mysql" ] && say "mysql is in $SERVERS/mysql"; }

on_path() { command -v mysqld > /dev/null && say "nothing was unpacked: the mysqld on PATH will be taken."; }

if ! command -v apt-get > /dev/null || ! command -v dpkg-deb > /dev/null; then
  unpacked || on_path && exit
  say "no apt here: install MySQL 8 or 9 your own way, so that \`mysqld\` is on PATH."
  exit 1
fi
mkdir -p "$SERVERS" && exec 9>> "$SERVERS/.lock" && flock 9 || {
  unpacked && exit # a shared folder that only its owner writes to
  say "cannot write to $SERVERS; set COEVOLVE_SERVERS."
  exit 1
}
server
unpacked || on_path || { say "no server could be had: see the lines above, or put .debs into COEVOLVE_MIRROR/mysql."; exit 1; }
