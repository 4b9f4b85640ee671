#!/usr/bin/env bash
# Builds the bridge, the shared memory between ranks and their tests with ThreadSanitizer in build-tsan
# and runs them.
#
# Usage: tools/tsan.sh [TEST_SPEC...]      Catch2's test specs for test_bridge; all by default
#
# The rest of the project links LibTorch, which is not instrumented; these know no torch. libzmq is not
# instrumented either: tests/tsan.supp says what of it is passed over. Exit status 1 on a race.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kFlags="-O1 -g1 -fsanitize=thread -fno-omit-frame-pointer"
mkdir -p build-tsan
cmake -G Ninja -B build-tsan -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="$kFlags" \
  -DCMAKE_EXE_LINKER_FLAGS=-fsanitize=thread >build-tsan/configure.log 2>&1 || {
  cat build-tsan/configure.log >&2
  exit 2
}
ninja -C build-tsan -j1 test_bridge test_bridge_servers test_sp_shared_memory

export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp halt_on_error=0 exitcode=66 second_deadlock_stack=1"
failed=0
build-tsan/tests/rollout_bridge/test_bridge "$@" || failed=1
if (($# == 0)); then
  build-tsan/tests/rollout_bridge/servers/test_bridge_servers || failed=1
  build-tsan/tests/sp/test_sp_shared_memory || failed=1
fi
exit "$failed"
