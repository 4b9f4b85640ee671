#include "rl/report/byte_text.h"

#include <array>
#include <cstddef>
#include <cstdio>

namespace ringside::rl {

std::string byte_text(double bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  constexpr double kPrintedAs1024 = 1023.5;
  std::size_t unit = 0;
  for (; bytes >= kPrintedAs1024 && unit + 1 < kUnits.size(); ++unit) {
    bytes /= 1024.0;
  }
  const int decimals = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  char text[64];
  std::snprintf(text, sizeof text, "%.*f %s", decimals, bytes, kUnits.at(unit));
  return text;
}

}  // namespace ringside::rl
