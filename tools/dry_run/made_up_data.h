// Data files of a dry run: the first lines of the recipe's own, or made-up ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::tools {

// Lines of each file.
inline constexpr int64_t kDryRunLines = 16;

// Makes the keys of the task's files and of its held-out files, eval.sets among them, name files in
// `dir` that a dry run can read: the first lines of a JSONL file that exists, another file that
// exists or one whose records name images as it is, and made-up lines where there is no file. A
// made-up answer suits the rewards of `config`. Throws: std::runtime_error when a file cannot be
// written.
void use_small_data(rl::Config& config, const std::filesystem::path& dir);

// Rewards of `config` that this machine can compute without a server, as the text of
// rollout.reward, with a reward by length: random weights earn nothing else, and groups of equal
// rewards have no gradient. A Python function is called once, to see whether it can score the data.
std::string small_rewards(const rl::Config& config);

// One sentence for each reward of `config` that small_rewards() leaves out, with the reason.
std::vector<std::string> left_out_rewards(const rl::Config& config);

// Writes recorded rollouts for `steps` steps with random ids, rewards and advantages.
// Throws: std::runtime_error when the file cannot be written.
void write_made_up_rollouts(const rl::Config& config, int64_t vocab_size, int64_t steps,
                            const std::filesystem::path& file);

}  // namespace ringside::tools
