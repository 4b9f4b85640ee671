#include "tests/simulator/recipe.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "rl/config/load.h"
#include "rl/rollouts/rollout_admission.h"
#include "tests/rl/gateway/character_tokenizer.h"

namespace ringside::simulator {
namespace {

using bridge::Rollout;

constexpr int64_t kVocabulary = int64_t{1} << 31;
constexpr int64_t kPositions = 1 << 20;

constexpr const char* kReward = "exact_match";

const std::vector<std::string> kWords{"math", "code", "chat"};

std::string joined(int64_t words, const std::string& behind) {
  std::string text;
  for (int64_t i = 0; i < words; ++i) {
    text += (i > 0 ? ", " : "") + kWords[static_cast<std::size_t>(i)] + behind;
  }
  return text;
}

std::string records(const RecipeFacts& facts) {
  std::string lines;
  for (std::size_t i = 0; i < facts.records.size(); ++i) {
    const RecipeFacts::Record& record = facts.records[i];
    nlohmann::json line{
        {"id", "p" + std::to_string(i)}, {"prompt", "ask " + std::to_string(i)}, {"answer", "a"}};
    if (facts.adapters > 1) {
      line["adapter"] = kWords[static_cast<std::size_t>(record.adapter)];
    }
    if (facts.teachers > 1) {
      line["source"] = kWords[static_cast<std::size_t>(record.teacher)];
    }
    lines += line.dump() + "\n";
  }
  return lines;
}

std::string held_out(const RecipePlan& plan) {
  std::string lines;
  for (int64_t i = 0; i < plan.held_out_prompts; ++i) {
    nlohmann::json line{{"prompt", "held out " + std::to_string(i)}, {"answer", "a"}};
    if (plan.facts.adapters > 1) {
      line["adapter"] = kWords[0];
    }
    lines += line.dump() + "\n";
  }
  return lines;
}

rl::Config write_recipe(const RecipePlan& plan, const std::filesystem::path& folder) {
  const RecipeFacts& facts = plan.facts;
  test::write_file(folder / "tokenizer.json", test::character_tokenizer());
  test::write_file(folder / "train.jsonl", records(facts));
  test::write_file(folder / "eval.jsonl", held_out(plan));
  std::vector<std::string> words{
      "seed=" + std::to_string(plan.seed),
      "model.path=" + folder.string(),
      "data.train=" + (folder / "train.jsonl").string(),
      "data.eval=" + (folder / "eval.jsonl").string(),
      "eval.every=1",
      "eval.by=workers",
      "eval.temperature=" + std::to_string(facts.held_out.temperature == 1.0 ? 0.0 : 0.5),
      facts.has_sessions ? "rollout.reward=worker" : std::string("rollout.reward=") + kReward,
      "rollout.prompts_per_step=" + std::to_string(plan.prompts_per_step),
      "rollout.group_size=" + std::to_string(facts.samples - (facts.has_greedy ? 1 : 0)),
      "rollout.temperature=" + std::to_string(facts.sampling.temperature)};
  if (facts.has_sessions) {
    words.emplace_back("rollout.harness=external");
  }
  if (facts.has_greedy) {
    words.emplace_back("algorithm.advantage.estimator=remax");
  } else {
    words.emplace_back("algorithm.advantage.estimator=reinforce");
  }
  if (facts.has_kept) {
    words.insert(words.end(), {"algorithm.logprobs_over=kept",
                               "rollout.top_p=" + std::to_string(facts.sampling.top_p),
                               "rollout.top_k=" + std::to_string(facts.sampling.top_k)});
  }
  if (facts.adapters > 1) {
    words.insert(words.end(), {"lora.rank=4", "lora.publish=adapter",
                               "lora.adapters=" + joined(facts.adapters, "")});
  }
  if (facts.teachers > 1) {
    words.insert(words.end(), {"data.source_key=source", "algorithm.distillation.teachers=" +
                                                             joined(facts.teachers, "=/teacher")});
  }
  return rl::load_config_or_throw({}, words);
}

}  // namespace

RecipePlan draw_recipe(Random& random, int64_t samples, bool has_sessions, bool has_stragglers) {
  RecipePlan plan;
  RecipeFacts& facts = plan.facts;
  facts.samples = samples;
  facts.has_sessions = has_sessions;
  // A group is never trained without its greedy completion.
  facts.has_greedy = !has_stragglers && samples > 1 && random.chance(0.5);
  facts.has_kept = !has_sessions && random.chance(0.5);
  // Each excludes the other in the product, and a teacher excludes kept sets.
  const int64_t chooses = random.between(0, 2);
  const int64_t words = random.between(2, std::ssize(kWords));
  facts.adapters = chooses == 1 && !has_sessions ? words : 1;
  facts.teachers = chooses == 2 && !facts.has_kept ? words : 1;
  for (int64_t left = random.between(1, 9); left > 0; --left) {
    facts.records.push_back(
        {random.between(0, facts.adapters - 1), random.between(0, facts.teachers - 1)});
  }
  facts.sampling.temperature = random.chance(0.5) ? 1.0 : 0.75;
  if (facts.has_kept) {
    facts.sampling.top_p = random.chance(0.5) ? 0.875 : 1.0;
    facts.sampling.top_k = facts.sampling.top_p == 1.0 || random.chance(0.5) ? 4 : 0;
  }
  facts.held_out = {1.0, 1.0, 1};  // greedily
  if (random.chance(0.5)) {
    facts.held_out = {0.5, facts.sampling.top_p, facts.sampling.top_k};
  }
  plan.seed = random.between(1, 1000);
  return plan;
}

Recipe::Recipe(const RecipePlan& plan)
    : plan_(plan),
      config_(write_recipe(plan, folder_.path())),
      tokenizer_(engine::Tokenizer::load(folder_.path() / "tokenizer.json")),
      jobs_(config_),
      answers_(config_, jobs_.prompts()),
      judge_(plan.facts) {}

std::vector<int64_t> Recipe::prompt_ids(const rl::SampleJob& job) const {
  return rl::prompt_ids(job.prompt, rl::prompt_rules(config_), tokenizer_);
}

Rollout Recipe::completed(const bridge::GrantedSample& sample, const std::string& worker,
                          std::vector<SampledPart> with, Random& random) {
  const rl::SampleJob job = jobs_.of(sample);
  Rollout r = rl::rollout_of_job(worker, job, with.front().version);
  r.prompt_ids = prompt_ids(job);
  for (const SampledPart& part : with) {
    const auto begin = static_cast<int64_t>(r.completion_ids.size());
    r.completion_ids.push_back(part.content);
    for (int64_t left = random.between(0, 2); left > 0; --left) {
      r.completion_ids.push_back(random.between(1, 99));
    }
    r.versions.push_back({part.version, begin, static_cast<int64_t>(r.completion_ids.size())});
  }
  const auto word = std::ranges::find(kWords, job.prompt.adapter);
  const int64_t adapter = job.prompt.adapter.empty() ? 0 : word - kWords.begin();
  r.completion_ids.push_back(kFirstVoice + 2 * adapter + (job.is_greedy ? 1 : 0));
  ++r.versions.back().end;
  const bool has_sets = plan_.facts.has_kept && !job.is_only_scored();
  for (const int64_t token : r.completion_ids) {
    r.logprobs.push_back(
        job.is_only_scored() ? 0.0F : -static_cast<float>(random.between(1, 1 << 20)) / (1 << 18));
    if (has_sets) {
      std::set<int64_t> ids{token};
      for (int64_t left = random.between(0, 3); left > 0; --left) {
        ids.insert(random.between(1, 99));
      }
      r.kept_sets.counts.push_back(static_cast<int32_t>(ids.size()));
      r.kept_sets.ids.insert(r.kept_sets.ids.end(), ids.begin(), ids.end());
    }
  }
  r.finish_reason =
      random.chance(0.2) ? bridge::FinishReason::kLength : bridge::FinishReason::kStop;
  r.rewards = {{kReward, random.chance(0.5) ? 1.0 : 0.0}};
  if (job.is_held_out()) {
    r.rewards = {{kReward, static_cast<double>(with.front().content)}};
  }
  judge_.made(r, std::move(with));
  return r;
}

Rollout Recipe::failed(const bridge::GrantedSample& sample, const std::string& worker,
                       int64_t version) {
  const rl::SampleJob job = jobs_.of(sample);
  Rollout r = rl::failed_rollout(worker, job, prompt_ids(job), version);
  judge_.made(r, {});
  return r;
}

std::shared_ptr<bridge::AdmissionPolicy> Recipe::admission() const {
  std::unique_ptr<rl::GrantedPrompts> granted;
  std::vector<std::vector<int64_t>> held_out_ids;
  if (!plan_.facts.has_sessions) {
    granted = std::make_unique<rl::GrantedPrompts>(
        config_, jobs_.prompts(), engine::Tokenizer::load(folder_.path() / "tokenizer.json"));
    for (const rl::HeldOutSet& set : jobs_.held_out().sets()) {
      for (const rl::Prompt& prompt : set.prompts) {
        held_out_ids.push_back(rl::prompt_ids(prompt, rl::prompt_rules(config_), tokenizer_));
      }
    }
  }
  return std::make_shared<rl::LiveAdmission>(config_, rl::ModelBounds{kVocabulary, kPositions},
                                             std::move(granted), std::move(held_out_ids));
}

// As train_rl() and train_policies() do.
void Recipe::train(std::span<const Rollout> rollouts) {
  std::vector<int64_t> kinds;
  for (const Rollout& r : rollouts) {
    kinds.push_back(answers_.kind(r.group_id));
  }
  judge_.trained(rollouts, kinds);
  const std::vector<rl::TrainedAndGreedy> parts = rl::parts_by_policy(
      rl::without_greedy({rollouts.begin(), rollouts.end()}, config_, kinds), config_);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const rl::TrainedAndGreedy& part = parts[i];
    if (!part.trained.empty()) {
      judge_.batched(part, static_cast<int64_t>(i),
                     rl::make_step_batch(part.trained, config_, {}, part.greedy, part.kinds));
    }
  }
}

}  // namespace ringside::simulator
