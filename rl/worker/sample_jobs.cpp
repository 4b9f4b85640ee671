#include "rl/worker/sample_jobs.h"

#include <filesystem>

#include "rl/config/task.h"
#include "rl/report/log.h"

namespace ringside::rl {
namespace {

// The prompts that the trainer's group indices refer to; the same in every worker.
PromptSet sampled_prompts(const Config& config, const engine::Tokenizer& tokenizer) {
  PromptSet set = load_prompt_set(config.data.train, config, tokenizer);
  if (set.overlong > 0) {
    log::warn(config.data.train + ": " + describe_overlong(set, prompt_rules(config)));
  }
  return set;
}

}  // namespace

SampleJobs::SampleJobs(const Config& config)
    : SampleJobs(config, engine::Tokenizer::load(std::filesystem::path(config.model.path) /
                                                 "tokenizer.json")) {}

SampleJobs::SampleJobs(const Config& config, const engine::Tokenizer& tokenizer)
    : config_(config),
      prompts_(sampled_prompts(config, tokenizer)),
      order_(prompts_.parts, config),
      held_out_(held_out_of_workers(config, tokenizer)) {}

SampleJob SampleJobs::of(const bridge::GrantedSample& sample) {
  if (sample.held_out >= 0) {
    const HeldOutPrompts::Place place = held_out_.place_of(sample.held_out);
    return {sample, held_out_.prompt(place),
            held_out_seed(config_, place.index, sample.sample_index), held_out_sampling(config_)};
  }
  const uint64_t seed =
      mix_seed({static_cast<uint64_t>(config_.seed), static_cast<uint64_t>(sample.group_id),
                static_cast<uint64_t>(sample.sample_index), static_cast<uint64_t>(sample.attempt)});
  const bool greedy =
      has_greedy_sample(config_) && sample.sample_index == config_.rollout.group_size;
  return {sample, prompts_.prompts[order_.at(sample.group_id)], seed,
          greedy ? kGreedySampling : stated_sampling(config_), greedy};
}

bridge::Rollout rollout_of_job(const std::string& worker_id, const SampleJob& job,
                               int64_t version) {
  bridge::Rollout r;
  r.rollout_id = std::to_string(job.sample.group_id) + "/" +
                 std::to_string(job.sample.sample_index) + "/v" + std::to_string(version) + "/" +
                 std::to_string(job.sample.attempt) + "/" + worker_id;
  r.attempt = job.sample.attempt;
  r.group_id = job.sample.group_id;
  r.group_size = job.sample.group_size;
  r.sample_index = job.sample.sample_index;
  r.prompt_id = job.prompt.id;
  r.temperature = static_cast<float>(job.sampling.temperature);
  r.top_p = static_cast<float>(job.sampling.top_p);
  r.top_k = static_cast<int32_t>(job.sampling.top_k);
  return r;
}

bridge::Rollout failed_rollout(const std::string& worker_id, const SampleJob& job,
                               const std::vector<int64_t>& prompt_ids, int64_t version) {
  bridge::Rollout r = rollout_of_job(worker_id, job, version);
  r.prompt_ids = prompt_ids;
  r.finish_reason = bridge::FinishReason::kError;
  return r;
}

}  // namespace ringside::rl
