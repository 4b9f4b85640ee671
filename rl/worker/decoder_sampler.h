// Batch sampler with our own decoder: the model of an embedded worker.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/models/decoder.h"
#include "rl/publish/weight_snapshot.h"
#include "rl/sampling/prompt_sampler.h"
#include "rl/setup/model_setup.h"
#include "rl/worker/embedded_loop.h"
#include "rl/worker/worker_link.h"

namespace ringside::rl {

// With lora.adapters there is a decoder for each, over one base, and a prompt is sampled by that of
// its adapter, one adapter after another.
// With algorithm.router_replay rollout, rollouts bring the experts that their tokens used; with
// algorithm.logprobs_over kept, the ids that top_p and top_k left for each token. With
// rollout.partial_rollout, a completion that is interrupted goes on under the next weights; keys
// and values of its tokens are computed again. Thread safety: none.
class DecoderSampler : public BatchSampler {
 public:
  // Blocks: until the data is read and tokenized.
  // Throws: what make_worker_models, model_device, PromptSampler and SampleJobs throw.
  DecoderSampler(const Config& config, std::string worker_id);

  std::string install(const bridge::WeightSnapshot& snapshot) override;
  std::vector<bridge::Rollout> sample(const std::vector<bridge::GrantedSample>& samples,
                                      int64_t version,
                                      const std::function<bool()>& should_stop) override;
  std::size_t unfinished() const override { return unfinished_.size(); }

  // Settings that the trainer compares with its own.
  bridge::Settings shared_settings() const;

 protected:
  // The only decoder, or the first.
  engine::Decoder& decoder() { return *models_.front().decoder; }

 private:
  // A sample with what was drawn so far.
  struct Begun {
    SampleJob job;
    engine::Completion completion = {};
    std::vector<bridge::VersionSpan> versions = {};
  };
  // The models as the snapshots of their weights name them.
  std::vector<PrefixedDecoder> prefixed() const;
  // Rollouts of those that are complete; the others become unfinished_.
  void add_rollouts(std::vector<Begun> samples, const DrawOptions& draw, int64_t version,
                    std::vector<bridge::Rollout>& rollouts);
  // The same of samples of one model.
  void add_rollouts_of(const engine::Decoder& decoder, std::vector<Begun> samples,
                       const DrawOptions& draw, int64_t version,
                       std::vector<bridge::Rollout>& rollouts);

  Config config_;
  std::string worker_id_;
  std::vector<WorkerModel> models_;
  PromptSampler sampler_;
  SampleJobs jobs_;
  std::vector<Begun> unfinished_;
  int64_t trainer_term_ = -1;  // of the installed weights
};

}  // namespace ringside::rl
