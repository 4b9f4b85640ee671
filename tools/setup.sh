#!/usr/bin/env bash
# Installs what Ringside needs and builds it: Debian packages, Python environments under .env/,
# build/ringside.
#
# Usage: tools/setup.sh [--no-tests] [--oracle] [--cuda] [--fuzz] [--vllm] [--llama] [--environments]
#   --no-tests  only the programs: no tests, no benchmarks, nor the packages that only they need
#   --oracle    also .env/oracle (5.2 GB): torch, transformers, TRL for the tests labelled "oracle"
#   --cuda      also .env/cuda (4.7 GB): LibTorch with CUDA; and build/ringside_cuda, which needs nvcc
#   --fuzz      also clang, for tools/fuzz.sh
#   --vllm      also .env/vllm (8 GB): vLLM on the CPU, for tools/test_vllm.sh
#   --llama     also .env/llama (0.2 GB): llama.cpp's server on the CPU, for tools/test_llama.sh
#   --environments  also .env/environments (1 GB): reasoning-gym, TextArena, OpenEnv, verifiers, for
#               tools/test_environments.sh
#
# Safe to run again at any time, after an interruption too: an environment counts as complete once
# its stamp, written last, holds the list of pinned versions; one without a stamp is checked file by
# file, and rebuilt when anything lacks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kPackages=(
  g++ cmake ninja-build ccache pkg-config
  libgloo-dev libcli11-dev libyaml-cpp-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libeigen3-dev
  cppzmq-dev libzmq3-dev libmsgpack-cxx-dev libzstd-dev libxxhash-dev libpcre2-dev libutf8proc-dev
  libre2-dev libcpp-httplib-dev libjpeg62-turbo-dev libpng-dev libwebp-dev python3 python3-venv python3-jinja2)
# What the tests, the benchmarks and the check of the tree's format need besides.
kTestPackages=(git catch2 librapidcheck-dev libbenchmark-dev clang-format-16 zsh)
readonly kStamp=ringside-complete

say() { echo "setup: $*"; }
die() {
  echo "setup: error: $*" >&2
  exit 1
}

# install_packages MORE...: kPackages and the packages named.
install_packages() {
  command -v dpkg-query >/dev/null ||
    die "no dpkg here; install what these Debian packages hold yourself: ${kPackages[*]} $*"
  local missing=() package status
  for package in "${kPackages[@]}" "$@"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || status=absent
    [[ $status == installed ]] || missing+=("$package")
  done
  ((${#missing[@]} == 0)) && return
  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      die "neither root nor sudo; as root: apt-get install --no-install-recommends ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq || die "apt-get update failed; see the message above"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y -o Dpkg::Use-Pty=0 \
    --no-install-recommends "${missing[@]}" || die "apt-get could not install: ${missing[*]}"
}

# need_disk GIB: stops unless that much is free here.
need_disk() {
  local free
  free=$(df -Pk . | awk 'NR == 2 {print int($4 / 1048576)}')
  ((free >= $1)) || die "needs $1 GiB of free disk in $PWD, $free GiB are free"
}

# make_env NAME GIB PIP_OPTION...: a virtual environment .env/NAME holding
# tools/requirements-NAME.txt. GIB is what pip takes at its peak, wheels and files together: oracle 8.1.
make_env() {
  local gib=$2 pins=tools/requirements-$1.txt env=.env/$1
  shift 2
  cmp -s "$pins" "$env/$kStamp" && return
  if [[ -x $env/bin/python ]] && "$env/bin/python" tools/check_env.py "$pins" >/dev/null; then
    say "$env is whole: stamping it"
    cp "$pins" "$env/$kStamp"
    return
  fi
  need_disk "$gib"
  say "building $env (up to $gib GiB while it installs): $(grep -v '^#' "$pins" | tr '\n' ' ')"
  # In place, since an environment's scripts name its path; without a stamp a half-made one never
  # counts as complete.
  rm -rf "$env"
  python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' ||
    die "torch 2.11.0 has wheels for Python 3.10 to 3.14; python3 is $(python3 --version)"
  python3 -m venv "$env" || die "python3 -m venv $env failed"
  "$env/bin/python" -m pip install --quiet --disable-pip-version-check "$@" -r "$pins" ||
    die "pip could not install $pins into $env; run this again once the cause above is gone"
  local problem
  problem=$("$env/bin/python" tools/check_env.py "$pins") ||
    die "$env is incomplete after installation: $problem"
  cp "$pins" "$env/$kStamp.new"
  mv "$env/$kStamp.new" "$env/$kStamp"
}

# build "TARGETS" CMAKE_OPTION...: in build/; two jobs at most, since a file of torch code takes over a
# gigabyte to compile.
build() {
  local targets=$1 jobs
  shift
  jobs=$(nproc)
  mkdir -p build
  cmake --preset release "$@" >build/configure.log 2>&1 || {
    cat build/configure.log >&2
    die "cmake --preset release failed; its output is above and in build/configure.log"
  }
  # shellcheck disable=SC2086  # several targets
  ninja -C build -j "$((jobs < 2 ? jobs : 2))" $targets ||
    die "the build failed; see the first error above"
}

# build_release TESTS CUDA: build/ringside, with TESTS 1 the tests, with CUDA 1 build/ringside_cuda.
# Without TESTS, a tree that was once configured with tests keeps them.
build_release() {
  local options=() programs=ringside
  if (($2)); then
    options+=(-DRINGSIDE_CUDA=ON)
    programs+=" ringside_cuda"
  fi
  if (($1)); then
    build all -DRINGSIDE_TESTS=ON "${options[@]}"
  elif [[ -e build/CMakeCache.txt ]]; then
    build "$programs" "${options[@]}"
  else
    build "$programs" -DRINGSIDE_TESTS=OFF "${options[@]}"
  fi
}

main() {
  local tests=1 oracle=0 cuda=0 vllm=0 llama=0 environments=0 option more=()
  for option in "$@"; do
    case $option in
      --no-tests) tests=0 ;;
      --oracle) oracle=1 ;;
      --cuda) cuda=1 ;;
      --fuzz) more+=(clang) ;;
      --vllm) vllm=1 ;;
      --llama) llama=1 ;;
      --environments) environments=1 ;;
      -h | --help)
        sed -n "2,15s/^# \{0,1\}//p" tools/setup.sh
        return
        ;;
      *) die "unknown option '$option'; expected --no-tests, --oracle, --cuda, --fuzz, --vllm, --llama, --environments or --help" ;;
    esac
  done
  ((cuda)) && ! command -v nvcc >/dev/null &&
    die "nvcc is not on PATH; ringside_cuda needs the CUDA 13.0 toolkit"
  mkdir -p .env
  exec 9>.env/lock
  flock -n 9 || {
    say "waiting for another setup in $PWD"
    flock 9
  }
  ((tests)) && more+=("${kTestPackages[@]}")
  install_packages "${more[@]}"
  # Nothing imports the torch of .env/build, so its byte code need not be made.
  make_env build 4 --no-deps --no-compile
  ((oracle)) && make_env oracle 10 --no-deps
  ((cuda)) && make_env cuda 13
  ((vllm)) && make_env vllm 16 --no-deps
  ((llama)) && make_env llama 1 --no-deps
  ((environments)) && make_env environments 2 --no-deps
  build_release "$tests" "$cuda"
  [[ -x build/ringside ]] || die "the build left no build/ringside"
  say "build/ringside is ready"
}

main "$@"
