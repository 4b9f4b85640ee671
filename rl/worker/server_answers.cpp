#include "rl/worker/server_answers.h"

#include <utility>

#include "rl/report/log.h"

namespace ringside::rl {
namespace {

engine::StopReason finish_of(bridge::FinishReason reason) {
  return reason == bridge::FinishReason::kStop ? engine::StopReason::kStop
                                               : engine::StopReason::kLength;
}

std::vector<bridge::VersionSpan> spans(const bridge::GenerateResult& result, std::size_t tokens,
                                       int64_t version) {
  std::vector<bridge::VersionSpan> out;
  for (const bridge::LabelSpan& span : result.versions) {
    out.push_back({*bridge::version_of_label(span.label), span.begin, span.end});
  }
  if (out.empty()) {
    out.push_back({version, 0, static_cast<int64_t>(tokens)});
  }
  return out;
}

}  // namespace

ServerAnswers::ServerAnswers(const Config& config, std::string worker_id,
                             const engine::ModelConfig& model, ServedWeights& served,
                             const PromptScorer& scorer, SampleJobs& jobs)
    : config_(config),
      worker_id_(std::move(worker_id)),
      num_layers_(model.num_hidden_layers),
      experts_per_token_(model.experts.per_token),
      served_(served),
      scorer_(scorer),
      jobs_(jobs) {
  const std::vector<int64_t> layers = expert_layers(model);
  expert_layers_.assign(layers.begin(), layers.end());
}

bridge::Result<bridge::RoutedExperts> ServerAnswers::routes(const ServedAnswer& answer) const {
  if (config_.algorithm.router_replay != RouterReplay::kRollout ||
      jobs_.of(answer.sample).is_only_scored()) {
    return bridge::RoutedExperts{};
  }
  const bridge::GenerateResult& result = answer.result.value();
  const auto tokens = static_cast<int64_t>(answer.prompt_ids.size() + result.completion_ids.size());
  return bridge::routed_experts(result.routed, tokens, expert_layers_, num_layers_,
                                experts_per_token_);
}

bool ServerAnswers::complete(ServedAnswer& answer) const {
  bridge::GenerateResult& result = answer.result.value();
  if (jobs_.of(answer.sample).is_only_scored()) {  // nobody reads its log-probs
    result.logprobs.assign(result.completion_ids.size(), 0.0F);
    return true;
  }
  if (result.logprobs_complete) {
    return true;
  }
  const Prompt prompt = jobs_.of(answer.sample).prompt;
  if (!prompt.images.empty()) {
    return false;  // our decoder scores text alone here
  }
  const RolloutConfig& rollout = config_.rollout;
  if (rollout.top_p != 1 || rollout.top_k != 0 ||
      rollout.server_options.pause == ServerPause::kKeep) {
    return false;
  }
  std::vector<int64_t> ids = answer.prompt_ids;
  ids.insert(ids.end(), result.completion_ids.begin(), result.completion_ids.end());
  const auto scores = served_.score(ids, rollout.temperature, prompt.adapter);
  result.logprobs.assign(scores.end() - static_cast<std::ptrdiff_t>(result.completion_ids.size()),
                         scores.end());
  return true;
}

std::optional<ServerAnswers::Sampled> ServerAnswers::sampled(ServedAnswer& answer,
                                                             int64_t version) const {
  bridge::Result<bridge::RoutedExperts> experts = routes(answer);
  if (!experts) {
    log::warn(config_.rollout.server_options.url + ": " + experts.error().detail);
  }
  if (!experts || !complete(answer)) {
    return std::nullopt;
  }
  bridge::GenerateResult& result = answer.result.value();
  auto versions = spans(result, result.completion_ids.size(), version);
  return Sampled{jobs_.of(answer.sample),
                 std::move(answer.prompt_ids),
                 {std::move(result.completion_ids), std::move(result.logprobs),
                  finish_of(result.finish_reason)},
                 std::move(versions),
                 std::move(experts).value()};
}

std::vector<bridge::Rollout> ServerAnswers::rollouts(std::vector<ServedAnswer> answers,
                                                     int64_t version) const {
  std::vector<bridge::Rollout> out;
  std::vector<Sampled> all;
  for (ServedAnswer& answer : answers) {
    if (auto one = sampled(answer, version)) {
      all.push_back(std::move(*one));
    } else {
      out.push_back(failed(answer, version));
    }
  }
  std::vector<Prompt> prompts;
  std::vector<std::vector<int64_t>> prompt_ids;
  std::vector<engine::Completion> completions;
  for (Sampled& one : all) {
    prompts.push_back(one.job.prompt);
    prompt_ids.push_back(std::move(one.prompt_ids));
    completions.push_back(std::move(one.completion));
  }
  const auto scored = scorer_.score(prompts, std::move(prompt_ids), std::move(completions));
  for (std::size_t i = 0; i < scored.size(); ++i) {
    out.push_back(make_rollout(worker_id_, all[i].job, scored[i], std::move(all[i].versions)));
    out.back().routed_experts = std::move(all[i].routed);
  }
  warn_of_failures(out);
  return out;
}

bridge::Rollout ServerAnswers::failed(const ServedAnswer& answer, int64_t version) const {
  return failed_rollout(worker_id_, jobs_.of(answer.sample), answer.prompt_ids, version);
}

}  // namespace ringside::rl
