// Recorded rollouts: a file with one JSON object per line.
//
// A line holds "group_id", "prompt_ids", "completion_ids", "logprobs" and one of "reward" (a
// number), "rewards" ([[name, value]]) or "advantages" (one per completion token). A line whose
// "finish_reason" is error or aborted needs none of the three. Optional: "loss_mask" (over the
// completion), "finish_reason", "temperature", "versions" [{version, begin, end}], "turn_offsets",
// "turn_rewards" (one per turn), "branches" [{begin, context_end}], "routed_experts" {layers,
// per_token, id_bytes, ids: base64}, "kept_sets" (a list of ids for each completion token),
// "top_p", "top_k", each as in bridge::Rollout, and "logged_in_term". The lines of a group, which
// have one group_id and one logged_in_term, follow each other. Empty lines are skipped. The file
// that log.rollouts writes has this format; its "advantages" beside "rewards" are those the trainer
// computed, and are ignored. Lines with "images" of a conversation are refused, because their
// pixels are not there. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "rl/config/config.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// All rollouts of the file in order. group_id is renumbered 0, 1, ... by first appearance (the file
// may use any strings or integers).
// Throws: std::runtime_error naming file and line, for an unreadable file, bad JSON, a missing or
// mistyped field, a rollout that bridge::validate or `admit` rejects, a group that does not have
// group_size consecutive lines, or a file without a group.
std::vector<bridge::Rollout> read_rollout_file(
    const std::filesystem::path& path, int64_t group_size,
    const std::function<bridge::Status(const bridge::Rollout&)>& admit = {});

// record_kind() of each group of such a file, whose lines have the words of record_choices() as
// records have them: the first line of each group counts.
// Throws: std::runtime_error naming file and line, for a line that record_kind() refuses.
std::vector<int64_t> recorded_kinds(const std::filesystem::path& path, const Config& config);

}  // namespace ringside::rl
