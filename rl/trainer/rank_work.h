// Long work on some ranks while the other ranks wait, without a collective timeout.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>

#include "rl/config/config.h"
#include "sp/mesh/communicator.h"

namespace ringside::rl {

// Another rank has failed. That rank reports the reason itself.
class RankFailed : public std::runtime_error {
 public:
  // rank: the one that failed.
  explicit RankFailed(int64_t rank)
      : std::runtime_error("rank " + std::to_string(rank) + " has failed") {}
};

// Interval between two collectives of ranks that wait for another rank: 5 s, or a quarter of
// parallel.collective_timeout_s if that is less.
std::chrono::milliseconds waiting_round(const Config& config);

// Runs `work` on the calling thread (empty: nothing to do on this rank) and returns on every rank
// when all ranks have finished. Meanwhile a helper thread of each working rank joins a small
// collective every `round`, so that no collective times out. `work` must not use `world`.
// Collective over: `world`.
// Blocks: until the work of all ranks is done.
// Throws: on the lowest rank whose work failed, that failure; on all other ranks RankFailed;
// c10::Error when the collectives themselves fail.
void run_rank_work(sp::Communicator& world, std::chrono::milliseconds round,
                   const std::function<void()>& work);

}  // namespace ringside::rl
