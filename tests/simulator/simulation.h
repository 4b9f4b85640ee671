// One simulated run: a trainer and workers drawn from a seed, faults for a while, then none.
// Whatever happened, the run must end within a bound of virtual time after the faults have stopped.
#pragma once

#include <cstdint>
#include <string>

#include "tests/simulator/clock.h"
#include "tests/simulator/trainer.h"

namespace ringside::simulator {

// Of the sessions of a run.
struct SessionFigures {
  int64_t answers = 0;              // that agents were given
  int64_t branches = 0;             // of rollouts
  int64_t of_several_versions = 0;  // rollouts with rewards
};

// Of the recipes of runs.
struct RecipeFigures {
  int64_t kept_tokens = 0;  // trained on with their kept sets
  int64_t greedy = 0;       // rewards that were compared with a greedy sample's
  int64_t chosen = 0;       // rollouts trained on, of records with words
  int64_t spanned = 0;      // rollouts trained on, of several versions
};

struct Outcome {
  bool ok = false;
  std::string trouble;  // the invariant that was broken, and the state of everybody
  FaultCounts faults;
  uint64_t events = 0;
  int64_t checks = 0;
  double virtual_seconds = 0;
  ImageFigures images;
  SessionFigures sessions;
  RecipeFigures recipes;
  int64_t stand_ins = 0;  // that steps were trained with
};

struct Scene {
  bool images = false;      // tools return images in many of the runs
  bool sessions = false;    // most workers' samples are sessions of agents
  bool stragglers = false;  // samples hang, and steps go on without them
  bool recipes = false;     // rollouts have what recipes ask for: kept sets, greedy samples, words
  bool verbose = false;
};

Outcome simulate(uint64_t seed, const Scene& scene = {});

}  // namespace ringside::simulator
