#include "rl/worker/server_answers.h"

#include <algorithm>
#include <utility>

namespace ringside::rl {
namespace {

engine::FinishReason finish_of(bridge::FinishReason reason) {
  return reason == bridge::FinishReason::kStop ? engine::FinishReason::kStop : engine::FinishReason::kLength;
}

std::vector<bridge::VersionSpan> spans(const bridge::GenerateResult& result, std::size_t tokens, int64_t version) {
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

ServerAnswers::ServerAnswers(const Config& config, std::string worker_id, const ServedWeights& served,
                             const PromptScorer& scorer)
    : config_(config), worker_id_(std::move(worker_id)), served_(served), scorer_(scorer) {}

bool ServerAnswers::names_version(const bridge::GenerateResult& result, int64_t version) {
  return (result.label || !result.versions.empty()) && !denies_version(result, version);
}

bool ServerAnswers::denies_version(const bridge::GenerateResult& result, int64_t version) {
  if (!result.versions.empty()) {  // any versions, as long as they are some
    return std::any_of(result.versions.begin(), result.versions.end(),
                       [](const bridge::LabelSpan& span) { return !bridge::version_of_label(span.label); });
  }
  return result.label && bridge::version_of_label(*result.label) != version;
}

bool ServerAnswers::complete(PoolAnswer& answer) const {
  bridge::GenerateResult& result = answer.result.value();
  if (result.logprobs_complete) {
    return true;
  }
  const RolloutConfig& rollout = config_.rollout;
  if (rollout.top_p != 1 || rollout.top_k != 0 || rollout.server_options.pause == ServerPause::kKeep) {
    return false;
  }
  std::vector<int64_t> ids = answer.prompt_ids;
  ids.insert(ids.end(), result.completion_ids.begin(), result.completion_ids.end());
  const auto scores = served_.shadow().score(ids, rollout.temperature);
  result.logprobs.assign(scores.end() - static_cast<std::ptrdiff_t>(result.completion_ids.size()), scores.end());
  return true;
}

std::vector<bridge::Rollout> ServerAnswers::rollouts(std::vector<PoolAnswer>& answers, int64_t version) const {
  std::vector<Prompt> prompts;
  std::vector<std::vector<int64_t>> prompt_ids;
  std::vector<engine::Completion> completions;
  for (PoolAnswer& answer : answers) {
    bridge::GenerateResult& result = answer.result.value();
    prompts.push_back(answer.job.prompt);
    prompt_ids.push_back(answer.prompt_ids);
    completions.push_back({std::move(result.completion_ids), std::move(result.logprobs), finish_of(result.finish_reason)});
  }
  const auto scored = scorer_.score(prompts, std::move(prompt_ids), std::move(completions));
  std::vector<bridge::Rollout> out;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    out.push_back(make_rollout(config_, worker_id_, answers[i].job, scored[i],
                               spans(answers[i].result.value(), scored[i].completion.ids.size(), version)));
  }
  return out;
}

bridge::Rollout ServerAnswers::failed(const PoolAnswer& answer, int64_t version) const {
  return failed_rollout(config_, worker_id_, answer.job, answer.prompt_ids, version);
}

}  // namespace ringside::rl
