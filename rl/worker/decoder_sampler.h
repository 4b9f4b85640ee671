// Batch sampler with our own decoder: the model of an embedded worker.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/models/decoder.h"
#include "rl/sampling/prompt_sampler.h"
#include "rl/worker/embedded_loop.h"
#include "rl/worker/worker_link.h"

namespace ringside::rl {

// With algorithm.router_replay rollout, rollouts bring the experts that their tokens used.
// Thread safety: none.
class DecoderSampler : public BatchSampler {
 public:
  // Throws: std::runtime_error when the data, the tokenizer or the model cannot be used.
  DecoderSampler(const Config& config, std::string worker_id);

  std::string install(const bridge::WeightSnapshot& snapshot) override;
  std::vector<bridge::Rollout> sample(const std::vector<bridge::GrantedSample>& samples,
                                      int64_t version) override;

  // Settings that the trainer compares with its own.
  bridge::Settings shared_settings() const;

 protected:
  engine::Decoder& decoder() { return *decoder_; }

 private:
  Config config_;
  std::string worker_id_;
  std::unique_ptr<engine::Decoder> decoder_;
  PromptSampler sampler_;
  SampleJobs jobs_;
};

}  // namespace ringside::rl
