// Guards: sizes of small models that are printed as 0.00 GiB; a size that is rounded up to 1024 of
// its unit.
#include "rl/report/byte_text.h"

#include <catch2/catch.hpp>
#include <utility>

namespace ringside::rl {
namespace {

TEST_CASE("a size is printed with three digits in the largest unit that it fills") {
  const std::pair<double, const char*> sizes[] = {
      {0, "0 B"},
      {640, "640 B"},
      {1023, "1023 B"},
      {1024, "1.00 KiB"},
      {37376, "36.5 KiB"},
      {1047552, "1023 KiB"},
      {1048064, "1.00 MiB"},  // 1023.5 KiB
      {536870912, "512 MiB"},
      {10.0 * (1 << 20), "10.0 MiB"},
      {99.96 * (1 << 20), "100 MiB"},
      {12240656794.0, "11.4 GiB"},
      {2251799813685248.0, "2048 TiB"},
  };
  for (const auto& [bytes, text] : sizes) {
    CHECK(byte_text(bytes) == text);
  }
}

}  // namespace
}  // namespace ringside::rl
