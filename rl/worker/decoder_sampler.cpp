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
      jobs_(config) {
  sampler_.take_images(config.data.train, jobs_.prompts().prompts);
  for (const HeldOutSet& set : jobs_.held_out().sets()) {
    sampler_.take_images(set.set.files, set.prompts);
  }
}

std::string DecoderSampler::install(const bridge::WeightSnapshot& snapshot) {
  install_weights(*decoder_, snapshot);
  return installed_root_hash(*decoder_, snapshot.manifest);
}

std::vector<bridge::Rollout> DecoderSampler::sample(
    const std::vector<bridge::GrantedSample>& samples, int64_t version) {
  std::vector<SampleJob> training;
  std::vector<SampleJob> held_out;
  for (const bridge::GrantedSample& sample : samples) {
    SampleJob job = jobs_.of(sample);
    (job.is_held_out() ? held_out : training).push_back(std::move(job));
  }
  const bool routes = config_.algorithm.router_replay == RouterReplay::kRollout;
  std::vector<bridge::Rollout> rollouts;
  add_rollouts(held_out, {config_.eval.temperature, /*records_routes=*/false}, version, rollouts);
  add_rollouts(training, {config_.rollout.temperature, routes}, version, rollouts);
  warn_of_failures(rollouts);
  return rollouts;
}

void DecoderSampler::add_rollouts(const std::vector<SampleJob>& jobs, const Batch& batch,
                                  int64_t version, std::vector<bridge::Rollout>& rollouts) const {
  if (jobs.empty()) {
    return;
  }
  std::vector<Prompt> prompts;
  std::vector<uint64_t> seeds;
  for (const SampleJob& job : jobs) {
    prompts.push_back(job.prompt);
    seeds.push_back(job.seed);
  }
  const auto scored =
      sampler_.sample(*decoder_, prompts, seeds, batch.temperature, batch.records_routes);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const auto tokens = static_cast<int64_t>(scored[i].completion.ids.size());
    rollouts.push_back(make_rollout(worker_id_, jobs[i], scored[i], {{version, 0, tokens}}));
    rollouts.back().routed_experts =
        routed_experts(scored[i].completion.routes_sLK, decoder_->config());
  }
}

bridge::Settings DecoderSampler::shared_settings() const {
  return rl::shared_settings(config_, decoder_->config(), jobs_.prompts(), jobs_.held_out(),
                             sampler_.stops());
}

}  // namespace ringside::rl
