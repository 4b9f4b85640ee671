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

# shellcheck source=tools/bundle/root.sh
source tools/bundle/root.sh

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
