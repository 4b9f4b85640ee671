// Requests of sessions on our own decoder, all that wait as one batch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/models/decoder.h"
#include "rl/config/config.h"
#include "rl/worker/session_loop.h"

namespace ringside::rl {

// Thread safety: none.
class DecoderSessions : public SessionModel {
 public:
  // stops: ids that end a completion. Throws: what make_worker_model and model_device throw.
  DecoderSessions(const Config& config, std::vector<int64_t> stops);

  std::string install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) override;
  void submit(std::vector<std::shared_ptr<WaitingRequest>> requests) override;
  bool work() override;
  std::size_t running() const override { return waiting_.size(); }
  void drop_requests() override { waiting_.clear(); }

 private:
  void complete(const std::vector<std::shared_ptr<WaitingRequest>>& requests) const;

  RolloutConfig config_;
  std::unique_ptr<engine::Decoder> decoder_;
  std::vector<int64_t> stops_;
  std::vector<std::shared_ptr<WaitingRequest>> waiting_;
  int64_t version_ = -1;
  int64_t trainer_term_ = -1;
};

}  // namespace ringside::rl
