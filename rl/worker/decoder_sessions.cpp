#include "rl/worker/decoder_sessions.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/generate/generator.h"
#include "rl/publish/weight_snapshot.h"
#include "rl/report/log.h"
#include "rl/sampling/prompt_sampler.h"
#include "rl/setup/model_device.h"
#include "rl/setup/model_setup.h"

namespace ringside::rl {

DecoderSessions::DecoderSessions(const Config& config, std::vector<int64_t> stops)
    : config_(config.rollout),
      decoder_(make_worker_model(config, model_device(config, /*local_rank=*/0))),
      stops_(std::move(stops)) {}

std::string DecoderSessions::install(
    const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) {
  install_weights(*decoder_, *snapshot);
  version_ = snapshot->manifest.version;
  trainer_term_ = snapshot->manifest.trainer_term;
  return installed_root_hash(*decoder_, snapshot->manifest);
}

void DecoderSessions::submit(std::vector<std::shared_ptr<WaitingRequest>> requests) {
  std::move(requests.begin(), requests.end(), std::back_inserter(waiting_));
}

bool DecoderSessions::work() {
  std::vector<std::shared_ptr<WaitingRequest>> waiting = std::exchange(waiting_, {});
  const bool answers_any = !waiting.empty();
  while (!waiting.empty()) {
    // Those that are sampled alike are one batch; training and evaluation may differ.
    const StatedSampling sampling = waiting.front()->request().sampling;
    const auto others = std::ranges::stable_partition(
        waiting, [&](const auto& request) { return request->request().sampling == sampling; });
    const std::vector requests(waiting.begin(), others.begin());
    waiting.erase(waiting.begin(), others.begin());
    try {
      complete(requests);
    } catch (const std::exception& error) {
      log::warn(std::string("a batch of requests could not be sampled: ") + error.what());
      for (const auto& request : requests) {
        if (!request->is_answered()) {
          request->fail(std::current_exception());
        }
      }
    }
  }
  return answers_any;
}

// Answers each request when its completion ends.
void DecoderSessions::complete(const std::vector<std::shared_ptr<WaitingRequest>>& requests) const {
  std::vector<std::vector<int64_t>> prompts;
  std::vector<uint64_t> seeds;
  std::vector<int64_t> limits;
  for (const auto& one : requests) {
    prompts.push_back(one->request().prompt);
    seeds.push_back(one->request().seed);
    limits.push_back(one->request().max_tokens);
  }
  const StatedSampling& sampling = requests.front()->request().sampling;
  const engine::SamplingParams params{.temperature = sampling.temperature,
                                      .top_p = sampling.top_p,
                                      .top_k = sampling.top_k,
                                      .max_new_tokens = std::ranges::max(limits),
                                      .stop_ids = stops_};
  engine::GenerateOptions options;
  options.seeds = seeds;
  options.max_new_tokens = limits;
  options.max_rows = kMostRows;
  options.cache_bytes = config_.cache_mb << 20;
  options.on_token = [&](std::size_t index, const engine::Completion& so_far) {
    WaitingRequest& request = *requests[index];
    if (so_far.finish == engine::StopReason::kAborted) {
      request.drawn(so_far.ids.back(), so_far.logprobs.back());
    } else {
      request.answer({{so_far.ids, so_far.logprobs, version_, trainer_term_},
                      so_far.finish == engine::StopReason::kStop});
    }
  };
  engine::generate(*decoder_, prompts, params, options);
}

}  // namespace ringside::rl
