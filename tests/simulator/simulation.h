// One simulated run: a trainer and workers drawn from a seed, faults for a while, then none.
// Whatever happened, the run must end within a bound of virtual time after the faults have stopped.
#pragma once

#include <cstdint>
#include <string>

#include "tests/simulator/clock.h"

namespace ringside::simulator {

struct Outcome {
  bool ok = false;
  std::string trouble;  // the invariant that was broken, and the state of everybody
  FaultCounts faults;
  uint64_t events = 0;
  int64_t checks = 0;
  double virtual_seconds = 0;
};

Outcome simulate(uint64_t seed, bool verbose = false);

}  // namespace ringside::simulator
