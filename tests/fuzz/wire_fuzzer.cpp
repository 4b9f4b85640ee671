// libFuzzer's way into fuzz::wire; built by tools/fuzz.sh.
#include "tests/fuzz/entries.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ringside::bridge::fuzz::wire({data, size});
  return 0;
}
