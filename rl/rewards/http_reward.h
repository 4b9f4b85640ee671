// A reward that a server computes.
#pragma once

#include "rl/rewards/reward.h"

namespace ringside::rl {

// POSTs {"prompt", "completion", "answer"} as JSON (bytes that are not UTF-8 become U+FFFD) to
// options.http_url and takes
// {"reward": number} or {"rewards": [number]} out of an answer of status 200 and at most 1 MiB. A
// try may take options.http_timeout_s; anything else than a finite number is tried again twice,
// after 0.25 and 1 s. Then the reward throws RewardUnavailable, which names the URL and the last
// trouble. Each call has a connection of its own. Throws std::invalid_argument unless the URL is
// http://host[:port][/path] and the timeout above 0.
Reward http_reward(const RewardOptions& options);

}  // namespace ringside::rl
