// libFuzzer's way into the entry that the build names; built by tools/fuzz.sh.
#include "tests/fuzz/entries.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ringside::bridge::fuzz::RINGSIDE_FUZZ_ENTRY({data, size});
  return 0;
}
