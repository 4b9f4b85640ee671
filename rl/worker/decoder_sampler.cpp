#include "rl/worker/decoder_sampler.h"

#include <utility>

#include "rl/publish/weight_snapshot.h"
#include "rl/setup/model_device.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/shared_settings.h"

namespace ringside::rl {
namespace {

// Routes as generate() records them; none without.
bridge::RoutedExperts routed_experts(const at::Tensor& routes_sLK,
                                     const engine::ModelConfig& model) {
  bridge::RoutedExperts routed;
  if (!routes_sLK.defined() || routes_sLK.numel() == 0) {
    return routed;
  }
  const std::vector<int64_t> layers = expert_layers(model);
  routed.layers.assign(layers.begin(), layers.end());
  routed.per_token = static_cast<int32_t>(routes_sLK.size(2));
  routed.id_bytes = static_cast<int32_t>(routes_sLK.element_size());
  const auto* bytes = static_cast<const uint8_t*>(routes_sLK.const_data_ptr());
  routed.ids.assign(bytes, bytes + routes_sLK.nbytes());
  return routed;
}

}  // namespace

DecoderSampler::DecoderSampler(const Config& config, std::string worker_id)
    : config_(config),
      worker_id_(std::move(worker_id)),
      decoder_(make_worker_model(config, model_device(config, /*local_rank=*/0))),
      sampler_(config, decoder_->config()),
      jobs_(config) {}

std::string DecoderSampler::install(const bridge::WeightSnapshot& snapshot) {
  install_weights(*decoder_, snapshot);
  return installed_root_hash(*decoder_, snapshot.manifest);
}

std::vector<bridge::Rollout> DecoderSampler::sample(
    const std::vector<bridge::GrantedSample>& samples, int64_t version) {
  std::vector<SampleJob> jobs;
  std::vector<Prompt> prompts;
  std::vector<uint64_t> seeds;
  for (const bridge::GrantedSample& sample : samples) {
    jobs.push_back(jobs_.of(sample));
    prompts.push_back(jobs.back().prompt);
    seeds.push_back(jobs.back().seed);
  }
  const bool routes = config_.algorithm.router_replay == RouterReplay::kRollout;
  const auto scored =
      sampler_.sample(*decoder_, prompts, seeds, config_.rollout.temperature, routes);
  std::vector<bridge::Rollout> rollouts;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const auto tokens = static_cast<int64_t>(scored[i].completion.ids.size());
    rollouts.push_back(
        make_rollout(config_, worker_id_, jobs[i], scored[i], {{version, 0, tokens}}));
    rollouts.back().routed_experts =
        routed_experts(scored[i].completion.routes_sLK, decoder_->config());
  }
  return rollouts;
}

bridge::Settings DecoderSampler::shared_settings() const {
  return rl::shared_settings(config_, decoder_->config(), jobs_.prompts(), sampler_.stops());
}

}  // namespace ringside::rl
