#include "tests/simulator/recipe_judge.h"

#include <algorithm>
#include <numeric>

#include "rollout_bridge/trainer/stragglers.h"

namespace ringside::simulator {
namespace {

using bridge::Rollout;

// What differs between two rollouts of one id, by the field's name.
std::string difference(const Rollout& made, const Rollout& trained) {
  if (made.kept_sets != trained.kept_sets) {
    return "kept sets";
  }
  if (made.temperature != trained.temperature || made.top_p != trained.top_p ||
      made.top_k != trained.top_k) {
    return "sampling settings";
  }
  if (made.versions != trained.versions) {
    return "versions";
  }
  if (made.prompt_id != trained.prompt_id || made.prompt_ids != trained.prompt_ids) {
    return "prompt";
  }
  return "contents";
}

bool is_sampled(const Rollout& r, std::size_t token) {
  return r.loss_mask.empty() || r.loss_mask[token] != 0;
}

}  // namespace

void RecipeJudge::check(bool holds, const std::string& what) {
  ++checks_;
  if (!holds) {
    throw Breach(what);
  }
}

void RecipeJudge::made(const Rollout& rollout, std::vector<SampledPart> from) {
  made_.emplace(rollout.rollout_id, Made{rollout, std::move(from)});
}

void RecipeJudge::renamed(const Rollout& rollout, const std::string& id) {
  Made made = made_as(rollout);
  made.rollout.rollout_id = id;
  made_.emplace(id, std::move(made));
}

std::vector<SampledPart> RecipeJudge::sampled_for(const Rollout& rollout) {
  return made_as(rollout).from;
}

int64_t RecipeJudge::newest_version(const std::string& id) const {
  int64_t newest = -1;
  const auto [first, last] = made_.equal_range(id);
  for (auto made = first; made != last; ++made) {
    for (const bridge::VersionSpan& span : made->second.rollout.versions) {
      newest = std::max(newest, span.version);
    }
  }
  return newest;
}

rl::StatedSampling RecipeJudge::sampling_of(int32_t sample_index) const {
  const bool greedy = facts_.has_greedy && sample_index + 1 == facts_.samples;
  return greedy ? rl::StatedSampling{1.0, 1.0, 1} : facts_.sampling;
}

const RecipeFacts::Record& RecipeJudge::record_of(const Rollout& r) {
  const bool named = r.prompt_id.starts_with("p");
  check(named, "rollout " + r.rollout_id + " is of no record");
  return facts_.records.at(std::stoul(r.prompt_id.substr(1)));
}

int64_t RecipeJudge::kind_of(const RecipeFacts::Record& record) const {
  return record.adapter * facts_.teachers + record.teacher;
}

// One of those that were made under this id is the rollout, with all that it says.
const RecipeJudge::Made& RecipeJudge::made_as(const Rollout& r) {
  const auto [first, last] = made_.equal_range(r.rollout_id);
  check(first != last, "rollout " + r.rollout_id + " was made by nobody");
  std::string what;
  const auto found = std::find_if(first, last, [&](const auto& item) {
    Rollout made = item.second.rollout;
    made.trainer_term = r.trainer_term;  // which the worker's loop says; Judge checks it
    what = difference(made, r);
    return made == r;
  });
  check(found != last, "rollout " + r.rollout_id + " has other " + what + " than its worker made");
  return found->second;
}

void RecipeJudge::check_sampling(const Rollout& r) {
  const std::string name = "rollout " + r.rollout_id + " ";
  const rl::StatedSampling expected = sampling_of(r.sample_index);
  const bool greedy = facts_.has_greedy && r.sample_index + 1 == facts_.samples;
  check(r.group_size == facts_.samples, name + "is of a group of another size");
  check(r.temperature == static_cast<float>(expected.temperature) &&
            r.top_p == static_cast<float>(expected.top_p) && r.top_k == expected.top_k,
        name + (greedy ? "stands for the greedy sample and is not" : "is sampled otherwise"));
  if (bridge::has_failed(r) || facts_.has_sessions) {
    return;
  }
  const int64_t voice = r.completion_ids.back() - kFirstVoice;
  check(voice % 2 == (greedy ? 1 : 0), name + "was drawn otherwise than it says");
  check(voice / 2 == record_of(r).adapter, name + "was sampled by the adapter of another record");
  const bool has_sets = facts_.has_kept && !greedy;
  for (std::size_t i = 0; i < r.completion_ids.size() && has_sets; ++i) {
    check(!r.kept_sets.empty() && r.kept_sets.counts[i] > 0, name + "has a token without its set");
  }
  check(has_sets || r.kept_sets.empty(), name + "has kept sets that nobody recorded");
}

void RecipeJudge::trained(std::span<const Rollout> rollouts, std::span<const int64_t> kinds) {
  check(rollouts.size() == kinds.size(), "a step has not as many kinds as rollouts");
  for (std::size_t i = 0; i < rollouts.size(); ++i) {
    const Rollout& r = rollouts[i];
    if (bridge::is_stand_in_id(r.rollout_id)) {  // Judge checks when the trainer may write one
      check(bridge::has_failed(r) && r.completion_ids.empty(),
            "stand-in " + r.rollout_id + " has something to learn from");
    } else {
      made_as(r);
    }
    check_sampling(r);
    check(kinds[i] == kind_of(record_of(r)), "rollout " + r.rollout_id + " of record " +
                                                 r.prompt_id + " is trained on as kind " +
                                                 std::to_string(kinds[i]) + ", its record is " +
                                                 std::to_string(kind_of(record_of(r))));
    chosen_ += facts_.adapters * facts_.teachers > 1 ? 1 : 0;
    spanned_ += r.versions.size() > 1 ? 1 : 0;
  }
}

// The loss tokens of a sample have its numbers and sets.
void RecipeJudge::check_columns(const Rollout& r, int64_t sample, const rl::StepBatch& batch) {
  const std::string name = "rollout " + r.rollout_id + " ";
  const rl::StepColumns& columns = batch.columns;
  int64_t at = columns.begin[sample];
  std::size_t kept = 0;
  for (std::size_t i = 0; i < r.completion_ids.size(); ++i) {
    const std::size_t count = r.kept_sets.empty() ? 0 : r.kept_sets.counts[i];
    if (batch.trained[sample] && is_sampled(r, i)) {
      check(at < columns.begin[sample + 1], name + "has loss tokens that are not learned from");
      check(columns.rollout[at] == static_cast<double>(r.logprobs[i]) &&
                columns.temperature[at] == static_cast<double>(r.temperature),
            name + "has a token with the log-prob or temperature of another");
      if (facts_.has_kept) {
        const auto set = std::span(r.kept_sets.ids).subspan(kept, count);
        const auto begin = columns.kept_sets.begin[at], end = columns.kept_sets.begin[at + 1];
        check(std::ranges::equal(set, std::span(columns.kept_sets.ids).subspan(begin, end - begin)),
              name + "has a token that is scored over the set of another");
        ++kept_tokens_;
      }
      ++at;
    }
    kept += count;
  }
  check(at == columns.begin[sample + 1], name + "is learned from beyond its loss tokens");
}

void RecipeJudge::batched(const rl::TrainedAndGreedy& part, int64_t adapter,
                          const rl::StepBatch& batch) {
  const int64_t group = facts_.samples - (facts_.has_greedy ? 1 : 0);
  check(std::ssize(part.greedy) * group == (facts_.has_greedy ? std::ssize(part.trained) : 0),
        "a step has not one greedy completion for each group");
  std::size_t document = 0;
  const auto& documents = batch.mini_batches.at(0).documents;
  for (std::size_t i = 0; i < part.trained.size(); ++i) {
    const Rollout& r = part.trained[i];
    check(record_of(r).adapter == adapter,
          "rollout " + r.rollout_id + " is learned from by the adapter of another record");
    check(!facts_.has_greedy || r.sample_index + 1 < facts_.samples,
          "rollout " + r.rollout_id + " is greedy and is learned from");
    const auto* greedy = facts_.has_greedy ? &part.greedy[i / group] : nullptr;
    check(greedy == nullptr ||
              (greedy->group_id == r.group_id && greedy->sample_index + 1 == facts_.samples),
          "rollout " + r.rollout_id + " has the baseline of another group");
    const bool has_baseline = greedy == nullptr || !bridge::has_failed(*greedy);
    check(batch.trained[i] == (has_baseline && !bridge::has_failed(r)),
          "rollout " + r.rollout_id + " is learned from, or not, against its baseline");
    if (greedy != nullptr && has_baseline) {
      double reward =
          std::accumulate(greedy->turn_rewards.begin(), greedy->turn_rewards.end(), 0.0);
      for (const auto& [name, value] : greedy->rewards) {
        reward += value;
      }
      check(batch.rewards.baseline.at(i) == reward,
            "rollout " + r.rollout_id + " is compared with another reward than the greedy one's");
      ++greedy_;
    }
    check_columns(r, static_cast<int64_t>(i), batch);
    for (int64_t count = batch.documents_of[i]; count > 0; --count) {
      check(documents.at(document++).kind == kind_of(record_of(r)),
            "rollout " + r.rollout_id + " becomes a document of another kind than its record's");
    }
  }
}

}  // namespace ringside::simulator
