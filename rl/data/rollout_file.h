// Recorded rollouts, one JSON object a line: {"group_id", "prompt_ids", "completion_ids", "logprobs", "reward"} and
// optionally "loss_mask" (over the completion), "finish_reason", "temperature", "versions" [{version, begin, end}],
// "turn_offsets", "turn_rewards" (one a turn), "advantages" (one a completion token; "reward" may then be absent), "branches"
// [{begin, context_end}], each as bridge::Rollout has it. The lines of a group follow each other. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "rollout_bridge/schema.h"

namespace ringside::rl {

// All rollouts of the file in order, group_id renumbered 0, 1, ... by first appearance (the file may use any strings or
// integers). Throws std::runtime_error naming file and line: unreadable file, bad JSON, a missing or mistyped field, a
// rollout that bridge::validate refuses, a group that does not have group_size consecutive lines, no group at all.
std::vector<bridge::Rollout> read_rollout_file(const std::filesystem::path& path, int64_t group_size);

}  // namespace ringside::rl
