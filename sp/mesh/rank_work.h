// Long work on some ranks while the other ranks wait, without a collective timeout.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

#include "sp/mesh/communicator.h"

namespace ringside::sp {

// Another rank has failed. That rank reports the reason itself.
class RankFailed : public std::runtime_error {
 public:
  // rank: the one that failed.
  explicit RankFailed(int64_t rank)
      : std::runtime_error("rank " + std::to_string(rank) + " has failed") {}
};

// Runs `work` on the calling thread (empty: nothing to do on this rank) and returns on every rank
// when all ranks have finished. Meanwhile a helper thread of each working rank joins a small
// collective every `round`, which is well below the collectives' timeout, so that none times out.
// `work` must not use `world`.
// Collective over: `world`.
// Blocks: until the work of all ranks is done.
// Throws: on the lowest rank whose work failed, that failure; on all other ranks RankFailed;
// c10::Error when the collectives themselves fail.
void run_rank_work(Communicator& world, std::chrono::milliseconds round,
                   const std::function<void()>& work);

}  // namespace ringside::sp
