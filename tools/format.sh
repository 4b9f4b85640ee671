#!/usr/bin/env bash
# Formats every C++ and CUDA file of the tree with clang-format 16 by .clang-format. Other versions
# lay out the same file otherwise.
#
# Usage: tools/format.sh [--check]
#   --check  changes nothing, names the files that are not formatted, exits 1 when there are any
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kVersion=16

die() {
  echo "format: error: $*" >&2
  exit 2
}

# find_clang_format: the path of clang-format of version kVersion.
find_clang_format() {
  local candidate
  for candidate in "clang-format-$kVersion" clang-format; do
    if command -v "$candidate" >/dev/null && [[ $("$candidate" --version) =~ version\ $kVersion\. ]]; then
      command -v "$candidate"
      return
    fi
  done
  die "no clang-format of version $kVersion; tools/setup.sh installs Debian's clang-format-$kVersion"
}

main() {
  local check=0 formatter file unformatted=0
  case ${1-} in
    '') ;;
    --check) check=1 ;;
    *) die "unknown option '$1'; expected --check" ;;
  esac
  formatter=$(find_clang_format)
  # Folders that hold sources; what a checkout holds besides (build folders, environments) is no part.
  local files=()
  mapfile -d '' files < <(find engine rl rollout_bridge sp tests tools -type f \
    \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z)
  ((${#files[@]} > 0)) || die "found no source files in $PWD"
  if ((!check)); then
    "$formatter" -i "${files[@]}"
    return
  fi
  local report
  report=$("$formatter" --dry-run "${files[@]}" 2>&1) || die "$formatter failed: $report"
  while IFS= read -r file; do
    echo "format: $file is not formatted; run tools/format.sh"
    unformatted=1
  done < <(sed -n 's/^\([^:]*\):[0-9].*clang-format-violations.*/\1/p' <<<"$report" | uniq)
  exit "$unformatted"
}

main "$@"
