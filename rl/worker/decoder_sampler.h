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
  // Blocks: until the data is read and tokenized.
  // Throws: what make_worker_model, model_device, PromptSampler and SampleJobs throw.
  DecoderSampler(const Config& config, std::string worker_id);

  std::string install(const bridge::WeightSnapshot& snapshot) override;
  std::vector<bridge::Rollout> sample(const std::vector<bridge::GrantedSample>& samples,
                                      int64_t version) override;

  // Settings that the trainer compares with its own.
  bridge::Settings shared_settings() const;

 protected:
  engine::Decoder& decoder() { return *decoder_; }

 private:
  struct Batch {
    double temperature;  // 0: greedy
    bool records_routes;
  };
  void add_rollouts(const std::vector<SampleJob>& jobs, const Batch& batch, int64_t version,
                    std::vector<bridge::Rollout>& rollouts) const;

  Config config_;
  std::string worker_id_;
  std::unique_ptr<engine::Decoder> decoder_;
  PromptSampler sampler_;
  SampleJobs jobs_;
};

}  // namespace ringside::rl
