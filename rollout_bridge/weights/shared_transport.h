// Transport of weights through shared memory, for workers on the trainer's machine.
//
// Thread safety: none.
#pragma once

#include "rollout_bridge/weights/shared_block.h"
#include "rollout_bridge/weights/weight_transport.h"

namespace ringside::bridge {

// A snapshot owns its block, so there is nothing to serve: the offer says where the block is.
class SharedSender final : public WeightSender {
 public:
  void describe(const WeightSnapshot& snapshot, OfferBody& offer) const override;
  std::shared_ptr<const WeightSnapshot> serve(std::shared_ptr<const WeightSnapshot>) override {
    return nullptr;
  }
};

// Copies tensors out of the trainer's block. The trainer may already be writing another version
// there: after the first hash mismatch the transport is unusable for this version.
class SharedFetcher final : public WeightFetcher {
 public:
  bool begin(const WeightSession& session, const OfferBody& where,
             const Manifest& manifest) override;
  bool prefers_changes() const override { return false; }  // one copy, no decompression
  Result<FetchState> fetch(WeightReceiver& receiver,
                           WeightReceiver::Clock::time_point now) override;
  const char* encoding(bool) const override { return "shared"; }
  void close() override;

 private:
  SharedViews views_;
  std::shared_ptr<const SharedView> view_;  // of the version being fetched
};

}  // namespace ringside::bridge
