#include "rl/worker/embedded_worker.h"

#include <chrono>
#include <memory>
#include <utility>

#include "rl/publish/weight_snapshot.h"
#include "rl/sampling/prompt_sampler.h"
#include "rl/setup/model_device.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/shared_settings.h"
#include "rl/worker/embedded_loop.h"
#include "rl/worker/run_loop.h"

namespace ringside::rl {
namespace {

class DecoderSampler final : public BatchSampler {
 public:
  DecoderSampler(const Config& config, std::string worker_id)
      : config_(config),
        worker_id_(std::move(worker_id)),
        decoder_(make_worker_model(config, model_device(config, /*local_rank=*/0))),
        sampler_(config, decoder_->config()),
        jobs_(config) {}

  std::string install(const bridge::WeightSnapshot& snapshot) override {
    install_weights(*decoder_, snapshot);
    return installed_root_hash(*decoder_, snapshot.manifest);
  }

  std::vector<bridge::Rollout> sample(const std::vector<bridge::GrantedSample>& samples,
                                      int64_t version) override {
    std::vector<SampleJob> jobs;
    std::vector<Prompt> prompts;
    std::vector<uint64_t> seeds;
    for (const bridge::GrantedSample& sample : samples) {
      jobs.push_back(jobs_.of(sample));
      prompts.push_back(jobs.back().prompt);
      seeds.push_back(jobs.back().seed);
    }
    const auto scored = sampler_.sample(*decoder_, prompts, seeds, config_.rollout.temperature);
    std::vector<bridge::Rollout> rollouts;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const auto tokens = static_cast<int64_t>(scored[i].completion.ids.size());
      rollouts.push_back(
          make_rollout(config_, worker_id_, jobs[i], scored[i], {{version, 0, tokens}}));
    }
    return rollouts;
  }

  // Settings that the trainer compares with its own.
  bridge::Settings shared_settings() const {
    return rl::shared_settings(config_, decoder_->config(), jobs_.prompts(), sampler_.stops());
  }

 private:
  Config config_;
  std::string worker_id_;
  std::unique_ptr<engine::Decoder> decoder_;
  PromptSampler sampler_;
  SampleJobs jobs_;
};

}  // namespace

void run_embedded_worker(const Config& config, const WorkerSettings& settings) {
  DecoderSampler sampler(config, settings.worker_id);
  bridge::WorkerEndpoint endpoint(worker_options(config, settings, sampler.shared_settings()));
  EmbeddedLoop loop(endpoint, sampler, settings,
                    static_cast<std::size_t>(samples_per_batch(config)), settings.now);
  run_loop(loop, endpoint, settings);
  leave(endpoint, loop.ended());
}

}  // namespace ringside::rl
