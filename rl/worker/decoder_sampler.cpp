#include "rl/worker/decoder_sampler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "rl/config/adapter_names.h"
#include "rl/setup/model_device.h"
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

// Kept sets as generate() records them; none without.
bridge::KeptSets kept_sets(const std::vector<std::vector<int64_t>>& kept) {
  bridge::KeptSets sets;
  for (const std::vector<int64_t>& set : kept) {
    sets.counts.push_back(static_cast<int32_t>(set.size()));
    sets.ids.insert(sets.ids.end(), set.begin(), set.end());
  }
  return sets;
}

// Adds that the tokens [begin, end) of a completion were drawn under `version`.
void add_span(std::vector<bridge::VersionSpan>& versions, int64_t version, std::size_t begin,
              std::size_t end) {
  if (begin == end) {
    return;
  }
  if (versions.empty() || versions.back().version != version) {
    versions.push_back({version, static_cast<int64_t>(begin), static_cast<int64_t>(end)});
  }
  versions.back().end = static_cast<int64_t>(end);
}

// The routes of a completion's tokens when they were first computed: `before`, and behind them what
// a continuation computed, which has those of all tokens. Either may be undefined.
at::Tensor joined_routes(const at::Tensor& before_sLK, const at::Tensor& all_sLK) {
  if (!before_sLK.defined() || !all_sLK.defined()) {
    return all_sLK.defined() ? all_sLK : before_sLK;
  }
  const int64_t known = before_sLK.size(0);
  return at::cat({before_sLK, all_sLK.narrow(0, known, all_sLK.size(0) - known)});
}

}  // namespace

DecoderSampler::DecoderSampler(const Config& config, std::string worker_id)
    : config_(config),
      worker_id_(std::move(worker_id)),
      models_(make_worker_models(config, model_device(config, /*local_rank=*/0))),
      sampler_(config, decoder().config()),
      jobs_(config) {
  sampler_.take_images(config.data.train, jobs_.prompts().prompts);
  for (const HeldOutSet& set : jobs_.held_out().sets()) {
    sampler_.take_images(set.set.files, set.prompts);
  }
}

std::vector<PrefixedDecoder> DecoderSampler::prefixed() const {
  std::vector<PrefixedDecoder> all;
  for (const auto& [name, decoder] : models_) {
    all.push_back({name.empty() ? "" : adapter_prefix(name), decoder.get()});
  }
  return all;
}

std::string DecoderSampler::install(const bridge::WeightSnapshot& snapshot) {
  install_weights(prefixed(), snapshot);
  if (snapshot.manifest.trainer_term !=
      std::exchange(trainer_term_, snapshot.manifest.trainer_term)) {
    for (Begun& begun : unfinished_) {  // their versions mean nothing to a restarted trainer
      begun = {std::move(begun.job)};
    }
  }
  return installed_root_hash(prefixed(), snapshot.manifest);
}

std::vector<bridge::Rollout> DecoderSampler::sample(
    const std::vector<bridge::GrantedSample>& samples, int64_t version,
    const std::function<bool()>& should_stop) {
  std::vector<Begun> training = std::exchange(unfinished_, {});
  std::vector<Begun> held_out, greedy;
  for (const bridge::GrantedSample& sample : samples) {
    SampleJob job = jobs_.of(sample);
    (job.is_held_out() ? held_out : job.is_greedy ? greedy : training).push_back({std::move(job)});
  }
  const bool routes = config_.algorithm.router_replay == RouterReplay::kRollout;
  std::vector<bridge::Rollout> rollouts;
  add_rollouts(std::move(held_out), {.temperature = config_.eval.temperature}, version, rollouts);
  add_rollouts(std::move(greedy), {.temperature = 0}, version, rollouts);
  add_rollouts(std::move(training),
               {.temperature = config_.rollout.temperature,
                .record_routes = routes,
                .record_kept = config_.algorithm.logprobs_over == "kept",
                .should_stop = config_.rollout.partial_rollout ? should_stop : nullptr},
               version, rollouts);
  warn_of_failures(rollouts);
  return rollouts;
}

void DecoderSampler::add_rollouts(std::vector<Begun> samples, const DrawOptions& draw,
                                  int64_t version, std::vector<bridge::Rollout>& rollouts) {
  for (const auto& [name, decoder] : models_) {
    const auto own = std::stable_partition(
        samples.begin(), samples.end(),
        [&](const Begun& sample) { return sample.job.prompt.adapter != name; });
    add_rollouts_of(*decoder, {std::move_iterator(own), std::move_iterator(samples.end())}, draw,
                    version, rollouts);
    samples.erase(own, samples.end());
  }
}

void DecoderSampler::add_rollouts_of(const engine::Decoder& decoder, std::vector<Begun> samples,
                                     const DrawOptions& draw, int64_t version,
                                     std::vector<bridge::Rollout>& rollouts) {
  if (samples.empty()) {
    return;
  }
  std::vector<Prompt> prompts;
  std::vector<uint64_t> seeds;
  std::vector<engine::Completion> begun;
  for (const Begun& sample : samples) {
    prompts.push_back(sample.job.prompt);
    seeds.push_back(sample.job.seed);
    begun.push_back(sample.completion);
  }
  DrawOptions options = draw;
  options.begun = begun;
  std::vector<ScoredCompletion> scored = sampler_.sample(decoder, prompts, seeds, options);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    Begun& sample = samples[i];
    engine::Completion& completion = scored[i].completion;
    add_span(sample.versions, version, begun[i].ids.size(), completion.ids.size());
    completion.routes_sLK = joined_routes(begun[i].routes_sLK, completion.routes_sLK);
    if (completion.finish == engine::StopReason::kAborted) {
      sample.completion = std::move(completion);
      unfinished_.push_back(std::move(sample));
      continue;
    }
    rollouts.push_back(make_rollout(worker_id_, sample.job, scored[i], std::move(sample.versions)));
    rollouts.back().routed_experts = routed_experts(completion.routes_sLK, decoder.config());
    rollouts.back().kept_sets = kept_sets(completion.kept);
  }
}

bridge::Settings DecoderSampler::shared_settings() const {
  return rl::shared_settings(config_, models_.front().decoder->config(), jobs_.prompts(),
                             jobs_.held_out(), sampler_.stops());
}

}  // namespace ringside::rl
