# shellcheck shell=bash
# A minimal Debian 12 root with a torch wheel, for check_bundle.sh and check_wheel.sh, which source this and have say() and
# die(). Needs root and debootstrap.

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

# make_root ROOT [PACKAGE ...]: a minimal Debian with python3, these packages and nothing of ours.
make_root() {
  local root=$1 package packages=python3
  shift
  for package in "$@"; do packages+=,$package; done
  [[ -x $root/usr/bin/python3 ]] && return
  command -v debootstrap >/dev/null || die "debootstrap is not installed"
  say "making a minimal root in $root"
  debootstrap --variant=minbase --include="$packages" bookworm "$root" >"$root.log" 2>&1 ||
    die "debootstrap failed; see $root.log"
  chmod 755 "$root"  # mktemp's folder is closed to the ordinary user
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
