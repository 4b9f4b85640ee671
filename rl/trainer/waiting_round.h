// Interval between the collectives of ranks that wait for another rank.
#pragma once

#include <chrono>

#include "rl/config/config.h"

namespace ringside::rl {

// 5 s, or a quarter of parallel.collective_timeout_s if that is less: the `round` of
// sp::run_rank_work().
std::chrono::milliseconds waiting_round(const Config& config);

}  // namespace ringside::rl
