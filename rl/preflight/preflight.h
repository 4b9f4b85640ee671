// Preflight checks: opens everything that a run will open before the run starts, namely model,
// tokenizer, data, rewards, addresses and keys.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "rl/config/checks.h"
#include "rl/config/config.h"

namespace ringside::rl {

// The intended use of the configuration.
struct PreflightScope {
  // Rollout workers start on this machine and use data.train and the rewards.
  bool workers_here = true;
  bool brings_rollouts = false;    // rollouts come from a file or from prime-rl, not from workers
  std::filesystem::path rollouts;  // the file of rollouts; empty = none
  int64_t ranks_here = 0;          // trainer ranks that start on this machine; 0 = all
  // The run is planned for another machine, and its memory is not compared with this one's.
  bool elsewhere = false;
};

struct PreflightReport {
  std::vector<Mistake> mistakes;  // key and sentence; the sentence names file and line
  // Content of the files: numbers of prompts and of dropped prompts. Memory that a rank will need,
  // and a warning when the run will need nearly all that there is.
  std::vector<std::string> notes;

  bool ok() const { return mistakes.empty(); }
};

// Whether rollouts come from workers of the user's own: they send the rewards (rollout.reward
// "worker"), and there is no rollout.harness. `ringside train` waits for them; `ringside run` would
// start workers that can do nothing.
bool uses_own_workers(const Config& config);

// Reads the headers of the weights (no values) and whole data files, and tokenizes every prompt
// once. Starts one program in the sandbox if the reward code_tests is used, calls each Python
// reward once, and renders chat templates of the model by Python. Asks an inference server whether
// it answers, and binds ports for a moment. Collects all
// mistakes; at most ten lines of one file are listed. Writes nothing. Never throws for invalid user
// input.
PreflightReport preflight(const Config& config, const PreflightScope& scope);

}  // namespace ringside::rl
