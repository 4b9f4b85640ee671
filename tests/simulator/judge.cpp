#include "tests/simulator/judge.h"

namespace ringside::simulator {
namespace {

std::string name(const bridge::Rollout& r) { return "rollout " + r.rollout_id; }

}  // namespace

void Judge::check(bool holds, const std::string& what) {
  ++checks_;
  if (!holds) throw Breach(what);
}

void Judge::published(int64_t trainer_term, int64_t version, int64_t content) {
  contents_[{trainer_term, version}] = content;
  lineage_[version] = content;
}

void Judge::restored(int64_t version) {
  lineage_.erase(lineage_.upper_bound(version), lineage_.end());
  std::erase_if(trained_, [&](const auto& item) { return item.second > version; });
  last_step_ = version;
  popped_.clear();
}

void Judge::acknowledged(const std::string& rollout_id, int64_t group_id) {
  acknowledged_[rollout_id] = group_id;
}

void Judge::released(int64_t group_id) {
  std::erase_if(acknowledged_, [&](const auto& item) { return item.second == group_id; });
  popped_.erase(popped_.lower_bound({group_id, 0}), popped_.lower_bound({group_id + 1, 0}));
}

void Judge::started(const std::set<std::string>& replayed) {
  for (const auto& [id, group] : acknowledged_) {
    check(replayed.contains(id), "rollout " + id + " was acknowledged and is lost with a restart");
  }
}

void Judge::popped(const bridge::Rollout& r) {
  check(popped_.insert({r.group_id, r.sample_index}).second, name(r) + ": its sample came before");
  if (r.versions.empty()) return;  // a failed sample
  const auto found = contents_.find({r.trainer_term, r.versions.front().version});
  check(found != contents_.end(), name(r) + " names weights that were never published");
  check(r.completion_ids.front() == found->second,
        name(r) + " was sampled from weights " + std::to_string(r.completion_ids.front()) +
            ", the version it names is " + std::to_string(found->second));
}

void Judge::trained(int64_t step, const std::vector<bridge::Rollout>& rollouts, int64_t samples,
                    int64_t max_staleness) {
  check(step == last_step_ + 1,
        "step " + std::to_string(step) + " after " + std::to_string(last_step_));
  last_step_ = step;
  check(static_cast<int64_t>(rollouts.size()) == samples,
        "step " + std::to_string(step) + " has " + std::to_string(rollouts.size()) + " rollouts");
  for (const bridge::Rollout& r : rollouts) {
    check(trained_.emplace(r.rollout_id, step).second, name(r) + " is trained on twice");
    if (r.versions.empty()) continue;
    const int64_t version = r.versions.front().version;
    check(version <= step - 1 && version >= step - 1 - max_staleness,
          name(r) + " of version " + std::to_string(version) + " in step " + std::to_string(step));
    const auto found = lineage_.find(version);
    check(found != lineage_.end() && found->second == r.completion_ids.front(),
          name(r) + " is of weights that the run does not descend from");
  }
}

}  // namespace ringside::simulator
