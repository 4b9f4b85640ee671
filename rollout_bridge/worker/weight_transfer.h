// Transfers of weights to a worker: from an offered version to verified bytes in memory.
//
// One version is fetched at a time. A version that is being fetched is finished before a newer
// offer is started, so that frequent offers cannot keep a slow worker from ever installing one. The
// session passes offers and commits in, and sends what next_outcome() returns.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rollout_bridge/weights/weight_memory.h"
#include "rollout_bridge/weights/weight_receiver.h"
#include "rollout_bridge/weights/weight_transport.h"

namespace ringside::bridge {

// The bodies of the messages that tell the trainer: STAGED, STAGE_FAILED.
using TransferOutcome = std::variant<StagedBody, StageFailedBody>;

class WeightTransfer {
 public:
  using Clock = WeightReceiver::Clock;
  using Transports = std::vector<std::shared_ptr<WeightFetcher>>;

  // `transports` in the order in which they are tried for each version.
  WeightTransfer(WeightReceiver::Options options, Transports transports);

  // A new session. `session.chunk_bytes` limits the chunks that are requested in it.
  void join(WeightSession session);
  // The session has ended: what is being fetched or waits for its commit is dropped. The version
  // fetched last stays the base of later changes.
  void leave();

  // Fetches this version next. Replaces an earlier offer that was not started yet.
  void offer(WeightOffer offer);
  // Moves bytes of the version that is being fetched. Returns true when there is more to do at
  // once. Blocks: never.
  bool advance(Clock::time_point now);
  // The oldest outcome that was not returned yet.
  std::optional<TransferOutcome> next_outcome();
  // The verified version that waits for this commit; null when another one or none waits.
  std::shared_ptr<const WeightSnapshot> commit(int64_t version, const std::string& root_hash);

  bool is_fetching() const { return receiver_ != nullptr; }
  // A version is being fetched, or waits for its commit.
  bool is_busy() const { return receiver_ || staged_; }

 private:
  void start();
  bool use_transport(std::size_t first, const Manifest& manifest);
  void finish();
  void fail(int64_t version, const std::string& why);

  WeightReceiver::Options options_;
  Transports transports_;
  WeightSession session_;
  std::optional<WeightOffer> next_offer_;  // not started yet
  OfferBody where_;                        // of the version being fetched
  std::unique_ptr<WeightReceiver> receiver_;
  std::size_t transport_ = 0;  // index of the one in use
  std::deque<TransferOutcome> outcomes_;
  std::shared_ptr<const WeightSnapshot> staged_;
  // The version fetched last: the base of the next delta. One copy of the weights in host memory,
  // shared with the owner while it holds that WeightsReady.
  std::shared_ptr<const WeightSnapshot> base_;
  WeightMemory memory_;  // memory of versions before the base, reused for the next one
};

}  // namespace ringside::bridge
