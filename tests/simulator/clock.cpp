#include "tests/simulator/clock.h"

#include <cstdio>

namespace ringside::simulator {

void Trace::operator()(const std::string& text) const {
  if (!on_) {
    return;
  }
  const double at = std::chrono::duration<double>(events_.now() - kBegin).count();
  std::fprintf(stderr, "%10.3f %s\n", at, text.c_str());
}

}  // namespace ringside::simulator
