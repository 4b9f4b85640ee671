#!/usr/bin/env bash
# Packs the built programs, their tests, recipes, configs, the Python client and the Debian libraries
# that they need into one archive, dist/ringside-VERSION-linux-x86_64[-cuda].tar.gz. It runs unpacked
# anywhere on Linux x86-64 with glibc 2.36 or newer and a torch 2.11 wheel, which stays outside.
#
# Usage: tools/bundle.sh [--wheel] [--cuda]
#   --wheel  a wheel for pip in the place of the archive, without tests:
#            dist/ringside-VERSION-py3-none-manylinux_2_NN_x86_64.whl
#   --cuda   also ringside_cuda, the GPU tests and benchmarks; needs nvcc (tools/setup.sh --cuda)
#
# What stays outside, besides torch and its CUDA libraries: glibc, because the loader and it belong
# together; libstdc++ and libgcc_s, because a process has one of each and torch takes the machine's.
# Exits non-zero when a file would need a newer glibc than 2.36.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kNewestGlibc=2.36
readonly kOutside='^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libresolv|libutil|libanl|libstdc\+\+|libgcc_s)\.so'
readonly kOfWheels='^(libtorch|libc10|libcudart|libcupti|libnccl|libcu[a-z]+|libnv[A-Za-z_]+|libgomp|libcaffe2|libarrow|libparquet)'

say() { echo "bundle: $*"; }
die() {
  echo "bundle: error: $*" >&2
  exit 1
}

# build_targets LIST: builds the targets of a list file.
build_targets() {
  local targets
  targets=$(awk '{print $1}' "$1")
  # shellcheck disable=SC2086  # several targets
  ninja -C build -j "$(($(nproc) < 2 ? 1 : 2))" $targets || die "the build failed; see the first error above"
}

# install_component COMPONENT STAGE: installs stripped executables with their run path set.
install_component() {
  cmake --install build --component "$1" --prefix "$2" --strip >/dev/null ||
    die "cmake --install of component $1 failed"
}

# copy_libraries STAGE: the shared libraries that the executables and the modules of lib/ need and that stay neither outside
# nor with torch, with their licences.
copy_libraries() {
  local stage=$1 name path package
  mkdir -p "$stage/lib" "$stage/licenses"
  # ldd looks where the build found them: the installed copies do not know .env any more.
  find "$stage/libexec" "$stage/tests" "$stage/lib" -type f \( -executable -o -name '*.so*' \) -exec ldd {} + 2>/dev/null |
    awk '/=> \// {print $1, $3}' | sort -u | while read -r name path; do
    [[ $name =~ $kOutside || $name =~ $kOfWheels ]] && continue
    cp -L "$path" "$stage/lib/$name"
    package=$(dpkg-query -S "$(readlink -f "$path")" 2>/dev/null | sed 's/:.*//;q') ||
      package=$(dpkg-query -S "*/$(basename "$(readlink -f "$path")")" | sed 's/:.*//;q')
    cp -L "/usr/share/doc/$package/copyright" "$stage/licenses/$package"
  done
}

# newest_glibc FILE...: the newest version of glibc's symbols that a file asks for.
newest_glibc() {
  objdump -T "$@" 2>/dev/null | sed -n 's/.*GLIBC_\([0-9][0-9.]*\).*/\1/p' | sort -uV | tail -n 1
}

# newest_symbols FOLDER: the newest version of each library's symbols that its files ask for.
newest_symbols() {
  local library
  for library in GLIBC GLIBCXX GCC; do
    find "$1/libexec" "$1/lib" -type f \( -executable -o -name '*.so*' \) -exec objdump -T {} + 2>/dev/null |
      sed -n "s/.*[ (]\(${library}_[0-9][0-9.]*\).*/\1/p" | sort -uV | tail -n 1
  done
}

check_files() {
  local stage=$1 newest file files missing
  mkdir -p "$stage/tests"
  mapfile -t files < <(find "$stage/libexec" "$stage/tests" "$stage/lib" -type f \( -executable -o -name '*.so*' \))
  newest=$(newest_glibc "${files[@]}")
  [[ $(printf '%s\n%s\n' "$newest" "$kNewestGlibc" | sort -V | tail -n 1) == "$kNewestGlibc" ]] || {
    for file in "${files[@]}"; do
      [[ $(newest_glibc "$file") == "$newest" ]] && say "$file needs glibc $newest" >&2
    done
    die "a file needs glibc $newest, newer than $kNewestGlibc; build on Debian 12"
  }
  for file in "${files[@]}"; do
    missing=$(LD_LIBRARY_PATH=$2 ldd "$file" 2>/dev/null | sed -n 's/^\s*\(\S*\) => not found/\1/p' | tr '\n' ' ')
    [[ -z $missing ]] || die "$file: not found: $missing"
    ! readelf -d "$file" | grep -E 'R(UN)?PATH' | grep -qv '\[.ORIGIN' || die "$file: its run path names this machine"
  done
  echo "$newest"
}

write_manifest() {
  local stage=$1
  {
    echo "version: $2"
    echo "commit: $(git describe --always --dirty 2>/dev/null || echo unknown)"
    echo "date: $(date -u +%Y-%m-%d)"
    echo "newest glibc symbol: $3"
    echo "libraries: $(find "$stage/lib" -type f -printf '%f\n' | sort | tr '\n' ' ')"
  } >"$stage/MANIFEST"
}

# list_tests STAGE LIST...: labels of the tests, and which need no torch.
list_tests() {
  local stage=$1 name folder labels
  shift
  cat "$@" | while read -r name folder labels; do
    [[ $folder == tests ]] || continue
    echo "$name $labels" >>"$stage/tests/labels.txt"
    readelf -d "$stage/tests/$name" | grep -q 'libtorch\|libc10' || echo "$name" >>"$stage/tests/torch_free.txt"
  done
}

copy_files() {
  local stage=$1
  mkdir -p "$stage/bin" "$stage/tools" "$stage/python"
  cp tools/bundle/with-torch tools/bundle/ringside "$stage/bin"
  cp tools/bundle/README.md "$stage/README.md"
  # What git ignores stays here: a recipe's downloaded model has half a gigabyte.
  git ls-files -z --cached --others --exclude-standard configs recipes | xargs -0 cp --parents -t "$stage"
  cp -r rollout_bridge/python/. "$stage/python"
  find "$stage/python" -name __pycache__ -prune -exec rm -r {} +
  cp tools/quickstart_task.py tools/quickstart_gain.py "$stage/tools"
  if [[ -x $stage/libexec/ringside_cuda ]]; then
    ln -s ringside "$stage/bin/ringside_cuda"
    cp tools/gpu_check.sh "$stage"
    cp tools/bench/gpu/grpo_step.py "$stage/tools"
  fi
}

# wheel_libraries: where the build found torch, its CUDA libraries and Arrow, for ldd.
wheel_libraries() {
  local torch
  torch=$(sed -n 's/^RINGSIDE_TORCH_DIR:PATH=//p' build/CMakeCache.txt)
  if (($1)); then
    torch=$(sed -n 's/^-- CUDA and NCCL objects: .*linked to //p' build/configure.log)
  fi
  local arrow
  arrow=$(sed -n 's/^RINGSIDE_ARROW_DIR:PATH=//p' build/CMakeCache.txt)
  echo "$torch/lib:$torch/../nvidia/cu13/lib:$torch/../nvidia/nccl/lib:$arrow"
}

# make_wheel STAGE VERSION CUDA: builds the programs alone and packs them for pip.
make_wheel() {
  local stage=$1 version=$2 cuda=$3 newest wheel symbols targets=(ringside)
  ((cuda)) && targets+=(ringside_cuda)
  local module
  for module in ringside_parquet ringside_images; do
    ninja -C build -t query "$module" >/dev/null 2>&1 && targets+=("$module")
  done
  say "building ${targets[*]}"
  build_targets <(printf '%s\n' "${targets[@]}")
  install_component wheel "$stage"
  ((cuda)) && install_component wheel_cuda "$stage"
  mkdir -p "$stage/tests"
  copy_libraries "$stage"
  copy_files "$stage"
  newest=$(check_files "$stage" "$(wheel_libraries "$cuda")")
  write_manifest "$stage" "$version" "$newest"
  mapfile -t symbols < <(newest_symbols "$stage")
  wheel=$(python3 tools/bundle/wheel.py "$stage" "$version" dist "${symbols[@]}")
  say "$wheel: $(du -h "$wheel" | cut -f 1), unpacked $(du -sh "$stage" | cut -f 1); newest symbols: ${symbols[*]}"
}

main() {
  local cuda=0 wheel=0 option version name stage lists list newest
  for option in "$@"; do
    case $option in
      --cuda) cuda=1 ;;
      --wheel) wheel=1 ;;
      -h | --help)
        sed -n "2,14s/^# \{0,1\}//p" "$0"
        return
        ;;
      *) die "unknown option '$option'; expected --wheel, --cuda or --help" ;;
    esac
  done
  mkdir -p build dist
  local options=(-DRINGSIDE_TESTS=ON)
  ((cuda)) && options+=(-DRINGSIDE_CUDA=ON)
  cmake --preset release "${options[@]}" >build/configure.log 2>&1 || {
    cat build/configure.log >&2
    die "cmake --preset release failed; its output is above"
  }
  version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' build/CMakeCache.txt)
  if ((wheel)); then
    stage=dist/wheel-$version
    rm -rf "$stage"
    make_wheel "$stage" "$version" "$cuda"
    return
  fi
  name=ringside-$version-linux-x86_64
  ((cuda)) && name+=-cuda
  stage=dist/$name
  rm -rf "$stage" "$stage.tar.gz"
  mkdir -p "$stage/tests"
  lists=(build/bundle_targets.txt)
  ((cuda)) && lists+=(build/bundle_cuda_targets.txt)
  say "building"
  for list in "${lists[@]}"; do
    build_targets "$list"
  done
  install_component bundle "$stage"
  ((cuda)) && install_component bundle_cuda "$stage"
  list_tests "$stage" "${lists[@]}"
  copy_libraries "$stage"
  copy_files "$stage"
  newest=$(check_files "$stage" "$(wheel_libraries "$cuda")")
  write_manifest "$stage" "$version" "$newest"
  tar -C dist --sort=name --owner=0 --group=0 --numeric-owner -czf "$stage.tar.gz" "$name"
  say "$stage.tar.gz: $(du -h "$stage.tar.gz" | cut -f 1), unpacked $(du -sh "$stage" | cut -f 1); newest glibc symbol: $newest"
}

main "$@"
