// Reward by a judge: a language model behind OpenAI's API rates a completion by a rubric.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "rl/rewards/reward.h"

namespace ringside::rl {

// POSTs options.judge_url + "/chat/completions" with one user's message: the rubric, the question
// (the prompt's text), the answer of the data set if there is one, the completion, and the form of
// the verdict. The reward is judged_score() of the reply. At most options.judge_concurrency
// requests run at a time. A status other than 200, a reply without a verdict and a timeout are
// retried twice, after 1 and 4 s. The server's default temperature is used where it refuses 0.
// Blocks: at most three times options.judge_timeout_s and the pauses, and while others are judged.
// Throws: std::invalid_argument unless the options name a server and a model, the rubric's and the
// key's files can be read, and the timeout is above 0. The reward throws RewardUnavailable after
// the last retry, naming the URL and the last problem.
Reward judge_reward(const RewardOptions& options);

// The same with another way to wait between attempts, for tests.
Reward judge_reward(const RewardOptions& options,
                    std::function<void(std::chrono::milliseconds)> wait);

// The score of a reply: after its last "SCORE:", in any letter case, a number 0 to 10, of which a
// tenth is the score, or yes (1) or no (0). nullopt for anything else.
std::optional<double> judged_score(std::string_view reply);

// Whether options.judge_rubric is the name of a file and not the rubric itself: one line that ends
// in .md or .txt.
bool is_rubric_file(std::string_view rubric);

// Asks the judge once. Returns what is wrong with its answer; empty if it has a verdict.
// Blocks: at most options.judge_timeout_s, apart from name resolution.
// Throws: as judge_reward().
std::string judge_reward_problem(const RewardOptions& options, const RewardInput& input);

}  // namespace ringside::rl
