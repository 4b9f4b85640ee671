#!/usr/bin/env bash
# Installs the wheel of `tools/bundle.sh --wheel` with pip in a minimal Debian 12 root, as an ordinary user in a virtual
# environment, and runs there the commands of README's first recipe: `ringside check`, `ringside run --dry-run`, and a run of
# three steps with two trainer ranks. Prints sizes and seconds.
#
# Usage: tools/check_wheel.sh WHEEL [ROOT]
#   ROOT  a folder that holds such a root already, or becomes one (some 2 GB); default: a new one under /tmp, removed at the end
# The root has no network: torch is that of .env/build, whose requirements pip is not asked for; those of the client are fetched
# before. Needs root, debootstrap and python3 with pip. Exits non-zero when anything fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "check_wheel: $*"; }
die() {
  echo "check_wheel: error: $*" >&2
  exit 1
}

# shellcheck source=tools/bundle/root.sh
source tools/bundle/root.sh

# fetch_requirements FOLDER: wheels for Debian 12's Python of what the wheel needs besides torch.
fetch_requirements() {
  python3 -m pip download --quiet --dest "$1" --only-binary :all: --python-version 3.11 \
    "pyzmq>=25" "msgpack>=1.0" "numpy>=1.24" "xxhash>=3.0" jinja2 || die "the requirements could not be fetched"
}

# first_recipe FOLDER: README's first recipe with its two lines of data, a tiny Qwen2.5 in the place of the model, and the
# commands of the ordinary user.
first_recipe() {
  mkdir -p "$1"
  awk '/^# first.yaml/ {on = 1} /^```/ {on = 0} on' README.md >"$1/first.yaml"
  awk '/^\{"prompt": \[/' README.md >"$1/train.jsonl"
  [[ -s $1/first.yaml && -s $1/train.jsonl ]] || die "README.md has no first recipe any more"
  cp "$1/train.jsonl" "$1/held_out.jsonl"
  cp tools/bundle/check_wheel_inside.sh "$1/inside.sh"
}

main() {
  (($# >= 1 && $# <= 2)) || {
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
  }
  [[ -f $1 ]] || die "there is no wheel '$1'"
  ((EUID == 0)) || die "run it as root: it makes and enters a root file system"
  local wheel root=${2:-} begin
  wheel=$(realpath "$1")
  if [[ -z $root ]]; then
    root=$(mktemp -d /tmp/ringside-root.XXXXXX)
    # shellcheck disable=SC2064  # the folder of now
    trap "rm -rf '$root' '$root.log'" EXIT
  fi
  make_root "$root" python3-venv
  put_torch "$root" "$(find_wheel build)"
  rm -rf "$root/opt/wheel"
  mkdir -p "$root/opt/wheel"
  cp "$wheel" "$root/opt/wheel"
  fetch_requirements "$root/opt/wheel"
  first_recipe "$root/opt/wheel/first"
  say "wheel $(du -h "$wheel" | cut -f 1), packages of the root: $(grep -c '^Package:' "$root/var/lib/dpkg/status")"
  grep -q -e '-dev$' <(sed -n 's/^Package: //p' "$root/var/lib/dpkg/status") && die "the root has development packages"
  begin=$SECONDS
  in_root "$root" /opt/wheel/first/inside.sh || die "a part failed; see above"
  say "all parts passed in $((SECONDS - begin)) s"
}

main "$@"
