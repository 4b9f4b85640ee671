// Reward that an HTTP server computes.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "rl/rewards/reward.h"

namespace ringside::rl {

// POSTs {"prompt", "completion", "answer"} as JSON to options.http_url (bytes that are not UTF-8
// become U+FFFD). Expects {"reward": number} or {"rewards": [number]} in a response of status 200
// and at most 1 MiB, within options.http_timeout_s. Anything but a finite number is retried twice,
// after 0.25 and 1 s. Each call has its own connection.
// Blocks: at most three times options.http_timeout_s and the pauses, apart from name resolution.
// Throws: std::invalid_argument unless the URL is http[s]://host[:port][/path] and the timeout
// is above 0. HttpJson says whose certificates are trusted. The reward throws RewardUnavailable
// after the last retry, naming the URL and the last error.
Reward http_reward(const RewardOptions& options);

// The same with another way to wait between attempts, for tests.
Reward http_reward(const RewardOptions& options,
                   std::function<void(std::chrono::milliseconds)> wait);

// Asks the server once. Returns what is wrong with its answer; empty if it is a reward.
// Blocks: at most options.http_timeout_s, apart from name resolution.
// Throws: as http_reward().
std::string http_reward_problem(const RewardOptions& options, const RewardInput& input);

}  // namespace ringside::rl
