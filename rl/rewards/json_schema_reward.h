// Reward for completions that are JSON of a given schema.
#pragma once

#include "rl/rewards/reward.h"

namespace ringside::rl {

// 1 when the completion's last ```json block (or the whole completion if it has none) parses and
// satisfies the schema (json_schema.h), else 0. More than 64 KiB or nesting beyond kMaxJsonDepth is
// 0. The schema is the file options.json_schema, or the data set's answer if that is empty.
// Throws: std::invalid_argument naming the file and the problem.
Reward json_schema_reward(const RewardOptions& options);

// See answer_problem() in reward.h: without options.json_schema, an answer that is no usable
// schema.
std::string json_schema_answer_problem(std::string_view answer, const RewardOptions& options);

}  // namespace ringside::rl
