// Recorded rollouts, one JSON object a line.
//
// A line holds "group_id", "prompt_ids", "completion_ids", "logprobs" and one of "reward" (a
// number), "rewards" ([[name, value]]) or "advantages" (one a completion token); a line whose
// "finish_reason" is error or aborted needs none of them. Optional: "loss_mask" (over the
// completion), "finish_reason", "temperature", "versions" [{version, begin, end}], "turn_offsets",
// "turn_rewards" (one a turn), "branches" [{begin, context_end}], each as bridge::Rollout has it.
// The lines of a group follow each other. The file that log.rollouts writes is one: "advantages"
// beside "rewards" are then what the trainer made of them, and are not read. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// All rollouts of the file in order, group_id renumbered 0, 1, ... by first appearance (the file
// may use any strings or integers). Throws std::runtime_error naming file and line: unreadable
// file, bad JSON, a missing or mistyped field, a rollout that bridge::validate or `admit` refuses,
// a group that does not have group_size consecutive lines, no group at all.
std::vector<bridge::Rollout> read_rollout_file(
    const std::filesystem::path& path, int64_t group_size,
    const std::function<bridge::Status(const bridge::Rollout&)>& admit = {});

}  // namespace ringside::rl
