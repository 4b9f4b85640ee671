// Work of some ranks that the other ranks wait for.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>

#include "rl/config/config.h"
#include "sp/mesh/communicator.h"

namespace ringside::rl {

// Another rank has failed, and says why itself.
class RankFailed : public std::runtime_error {
 public:
  explicit RankFailed(int64_t rank)
      : std::runtime_error("rank " + std::to_string(rank) + " has failed") {}
};

// The longest that ranks let pass between two collectives while they wait for one of them: well
// inside parallel.collective_timeout_s.
std::chrono::milliseconds waiting_round(const Config& config);

// Runs `work` (empty: nothing to do on this rank) and returns on every rank when all have done
// theirs, however long that takes: meanwhile a thread of each rank at work meets the others in a
// small collective once every `round`. `work` runs on the calling thread and must not use `world`.
// Collective over: `world`. Throws: on the lowest rank whose work failed, what it threw; on all
// others RankFailed, unless the collectives themselves fail (c10::Error).
void run_rank_work(sp::Communicator& world, std::chrono::milliseconds round,
                   const std::function<void()>& work);

}  // namespace ringside::rl
