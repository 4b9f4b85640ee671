// What a run is going to open, opened before it starts: model, tokenizer, data, rewards, addresses
// and keys.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "rl/config/checks.h"
#include "rl/config/config.h"

namespace ringside::rl {

// What the configuration is about to be used for.
struct PreflightScope {
  bool workers_here =
      true;  // rollout workers start on this machine: data.train and rewards are theirs
  bool brings_rollouts = false;    // rollouts come from elsewhere than workers: a file, or prime-rl
  std::filesystem::path rollouts;  // that file; empty = none
};

struct PreflightReport {
  std::vector<Mistake> mistakes;  // each key with a sentence that names the file and the line
  std::vector<std::string>
      notes;  // what the files hold: numbers of prompts, prompts that are dropped

  bool ok() const { return mistakes.empty(); }
};

// Reads headers of weights and no values, data files to the last line, and tokenizes every prompt
// once. Starts one program in the sandbox where the reward code_tests is used; opens no socket. All
// mistakes are collected; at most ten lines of one file are listed. Pure but for reading; never
// throws for what a user wrote.
PreflightReport preflight(const Config& config, const PreflightScope& scope);

}  // namespace ringside::rl
