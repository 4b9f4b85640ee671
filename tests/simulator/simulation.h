// One simulated run: a trainer and workers drawn from a seed, faults for a while, then none.
// Whatever happened, the run must end within a bound of virtual time after the faults have stopped.
#pragma once

#include <cstdint>
#include <string>

#include "tests/simulator/clock.h"
#include "tests/simulator/trainer.h"

namespace ringside::simulator {

struct Outcome {
  bool ok = false;
  std::string trouble;  // the invariant that was broken, and the state of everybody
  FaultCounts faults;
  uint64_t events = 0;
  int64_t checks = 0;
  double virtual_seconds = 0;
  ImageFigures images;
};

struct Scene {
  bool images = false;  // tools return images in many of the runs
  bool verbose = false;
};

Outcome simulate(uint64_t seed, const Scene& scene = {});

}  // namespace ringside::simulator
