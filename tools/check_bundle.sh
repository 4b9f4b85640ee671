#!/usr/bin/env bash
# Unpacks a bundle in a minimal Debian 12 root that holds only python3 and the torch wheel, and runs
# it there as an ordinary user: `ringside check` and `train` (supervised, then GRPO from recorded
# rollouts), and the tests that need no torch. Prints sizes and seconds.
#
# Usage: tools/check_bundle.sh ARCHIVE [ROOT]
#   ARCHIVE  what tools/bundle.sh made
#   ROOT     a folder that holds such a root already, or becomes one (some 2 GB); default: a new one
#            under /tmp, removed at the end
# Needs root, debootstrap, and .env/build (for a bundle made with --cuda .env/cuda or .env/oracle).
# Exits non-zero when anything fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "check_bundle: $*"; }
die() {
  echo "check_bundle: error: $*" >&2
  exit 1
}

# The first complete wheel of the environments named.
find_wheel() {
  local env folder
  for env in "$@"; do
    for folder in .env/"$env"/lib/python3*/site-packages; do
      [[ -e $folder/torch/lib/libtorch_cpu.so ]] && realpath "$folder" && return
    done
  done
  die "no torch in .env/{$*}; run tools/setup.sh"
}

# make_root ROOT: a minimal Debian with python3 and nothing of ours.
make_root() {
  [[ -x $1/usr/bin/python3 ]] && return
  command -v debootstrap >/dev/null || die "debootstrap is not installed"
  say "making a minimal root in $1"
  debootstrap --variant=minbase --include=python3 bookworm "$1" >"$1.log" 2>&1 ||
    die "debootstrap failed; see $1.log"
  chmod 755 "$1"  # mktemp's folder is closed to the ordinary user
}

# put_torch ROOT WHEEL: the wheel's folders where python3 finds them; as hard links where possible.
put_torch() {
  local target=$1/usr/local/lib/python3.11/dist-packages part
  mkdir -p "$target"
  for part in torch nvidia; do
    [[ -e $target/$part ]] || cp -rl "$2/$part" "$target" 2>/dev/null ||
      { rm -rf "${target:?}/$part" && cp -r "$2/$part" "$target"; }
  done
}

# in_root ROOT SCRIPT: runs it there as an ordinary user, with /proc, /dev, /tmp and a network of its
# own. By pivot_root, because a process after chroot may not make user namespaces, which the sandbox of
# rewards needs.
in_root() {
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --mount --pid --fork --net -- bash -euc '
    mount --make-rprivate /
    mount --bind "$1" "$1"
    cd "$1"
    mount -t proc proc proc
    mount --rbind /dev dev
    mount -t tmpfs tmpfs tmp
    python3 -c "$3"
    mkdir -p mnt/outside
    pivot_root . mnt/outside
    umount -l mnt/outside
    exec /usr/sbin/chroot --userspec=1000:1000 / /usr/bin/env -i HOME=/tmp PATH=/usr/bin:/bin /bin/sh -eu "$2"
  ' in_root "$1" "$2" '
import fcntl, socket, struct
loopback_up = struct.pack("16sH22x", b"lo", 0x41)
fcntl.ioctl(socket.socket(), 0x8914, loopback_up)'
}

main() {
  (($# >= 1 && $# <= 2)) || {
    sed -n '2,13s/^# \{0,1\}//p' "$0"
    exit 2
  }
  [[ -f $1 ]] || die "there is no archive '$1'"
  ((EUID == 0)) || die "run it as root: it makes and enters a root file system"
  local archive root=${2:-} wheel name
  archive=$(realpath "$1")
  name=$(basename "$archive" .tar.gz)
  if [[ -z $root ]]; then
    root=$(mktemp -d /tmp/ringside-root.XXXXXX)
    # shellcheck disable=SC2064  # the folder of now
    trap "rm -rf '$root' '$root.log'" EXIT
  fi
  if [[ $name == *-cuda ]]; then wheel=$(find_wheel cuda oracle); else wheel=$(find_wheel build); fi
  make_root "$root"
  put_torch "$root" "$wheel"
  rm -rf "$root/opt/$name"
  tar -C "$root/opt" -xzf "$archive"
  cp tools/bundle/check_inside.sh "$root/opt/check_inside.sh"
  sed -i "s|^cd /opt/.*|cd /opt/$name|" "$root/opt/check_inside.sh"
  say "archive $(du -h "$archive" | cut -f 1), unpacked $(du -sh "$root/opt/$name" | cut -f 1), packages of the root: $(grep -c '^Package:' "$root/var/lib/dpkg/status")"
  grep -q -e '-dev$' <(sed -n 's/^Package: //p' "$root/var/lib/dpkg/status") && die "the root has development packages"
  local begin=$SECONDS
  in_root "$root" /opt/check_inside.sh || die "a part failed; see above"
  say "all parts passed in $((SECONDS - begin)) s"
}

main "$@"
