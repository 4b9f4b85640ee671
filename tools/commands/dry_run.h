// Option --dry-run of `ringside run` and `ringside train`.
#pragma once

#include "tools/commands/command.h"

namespace ringside::tools {

inline constexpr const char* kDryRunHelp =
    "take two steps with a small copy of the recipe: same algorithm, layout, sharding and "
    "adapters, "
    "but a small model with random weights, short texts, and made-up data where files are missing. "
    "Needs no weights, no GPU and no --run-dir; exits with 0 if both steps were taken";

// Prints what is smaller than in the recipe, takes two steps in a temporary folder, and prints a
// summary. recorded_rollouts: the run trains on recorded rollouts, which are made up here. The
// folder is removed after success; its path is printed otherwise.
// nproc: --nproc, or 0. Returns the exit code.
// Blocks: until the run has ended, at most 5 minutes.
int dry_run(const rl::LoadedConfig& loaded, bool recorded_rollouts, int nproc);

}  // namespace ringside::tools
