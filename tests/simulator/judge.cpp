#include "tests/simulator/judge.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "rollout_bridge/trainer/stragglers.h"
#include "tests/simulator/pictures.h"

namespace ringside::simulator {
namespace {

std::string name(const bridge::Rollout& r) { return "rollout " + r.rollout_id; }

}  // namespace

Judge::Judge()
    : sampled_for_([](const bridge::Rollout& r) {
        std::vector<SampledPart> parts;
        for (const bridge::VersionSpan& span : r.versions) {
          parts.push_back({r.trainer_term, span.version,
                           r.completion_ids.at(static_cast<std::size_t>(span.begin))});
        }
        return parts;
      }) {}

void Judge::check(bool holds, const std::string& what) {
  ++checks_;
  if (!holds) {
    throw Breach(what);
  }
}

void Judge::published(int64_t trainer_term, int64_t version, int64_t content) {
  contents_[{trainer_term, version}] = content;
  lineage_[version] = content;
}

void Judge::restored(int64_t version) {
  lineage_.erase(lineage_.upper_bound(version), lineage_.end());
  std::erase_if(trained_, [&](const auto& item) { return item.second > version; });
  std::erase_if(acknowledged_, [&](const auto& item) { return item.second.second > version; });
  last_step_ = version;
  popped_.clear();
}

void Judge::spoiled(const std::string& rollout_id) {
  spoiled_.insert(rollout_id);
  acknowledged_.erase(rollout_id);  // the id no longer names one sample
}

void Judge::acknowledged(const std::string& rollout_id, int64_t group_id, int64_t version) {
  if (spoiled_.contains(rollout_id)) {
    return;
  }
  acknowledged_[rollout_id] = {group_id, version};
}

void Judge::released(int64_t group_id) {
  std::erase_if(acknowledged_, [&](const auto& item) { return item.second.first == group_id; });
  popped_.erase(popped_.lower_bound({group_id, 0}), popped_.lower_bound({group_id + 1, 0}));
}

void Judge::started(const std::set<std::string>& replayed) {
  for (const auto& [id, group] : acknowledged_) {
    check(replayed.contains(id), "rollout " + id + " was acknowledged and is lost with a restart");
  }
}

bool Judge::rejected(const std::string& rollout_id, const std::string& detail) {
  const bool is_spoiled = rollout_id.empty() || spoiled_.contains(rollout_id);
  // Of groups that this start knows nothing of: no fault of the worker that asks on.
  const bool is_of_unknown = detail.find("was granted by no earlier start") != detail.npos;
  if (is_of_unknown && (is_spoiled || forgives_unknown_groups_)) {
    return false;
  }
  if (is_spoiled) {
    return true;
  }
  check(false, "rollout " + rollout_id + " was asked for and is rejected: " + detail);
  return false;
}

void Judge::installed(const bridge::WeightSnapshot& snapshot) {
  std::vector<bridge::NamedBuffer> tensors;
  for (std::size_t i = 0; i < snapshot.tensors.size(); ++i) {
    const bridge::TensorEntry& t = snapshot.manifest.tensors[i];
    tensors.push_back({t.name, t.dtype, t.shape, snapshot.tensors[i]});
  }
  check(bridge::root_hash_of(tensors) == snapshot.manifest.root_hash,
        "a worker was handed weights of version " + std::to_string(snapshot.manifest.version) +
            " that are not what was published");
}

void Judge::evaluated(const std::vector<bridge::HeldOutSample>& samples, int64_t prompts,
                      int32_t samples_each, int64_t content) {
  check(static_cast<int64_t>(samples.size()) == prompts * samples_each,
        "an evaluation has " + std::to_string(samples.size()) + " samples");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const bridge::HeldOutSample& sample = samples[i];
    check(sample.prompt == static_cast<int64_t>(i) / samples_each, "samples are out of order");
    if (sample.rewards.empty()) {
      continue;  // it failed at every attempt
    }
    check(sample.rewards[0].second == static_cast<double>(content),
          "an evaluation of weights " + std::to_string(content) + " holds a sample of " +
              std::to_string(sample.rewards[0].second));
  }
}

std::vector<SampledPart> Judge::parts_of(const bridge::Rollout& r) const {
  return bridge::is_stand_in_id(r.rollout_id) ? std::vector<SampledPart>() : sampled_for_(r);
}

void Judge::check_stand_ins(const std::vector<bridge::Rollout>& rollouts, int64_t min_group_size) {
  struct Group {
    int64_t good = 0;
    int64_t newest = -1;  // version, of its rollouts
    std::vector<std::string> stand_ins;
  };
  std::map<int64_t, Group> groups;
  for (const bridge::Rollout& r : rollouts) {
    Group& group = groups[r.group_id];
    for (const bridge::VersionSpan& span : r.versions) {
      group.newest = std::max(group.newest, span.version);
    }
    if (!bridge::is_stand_in_id(r.rollout_id)) {
      group.good += bridge::has_failed(r) ? 0 : 1;
      continue;
    }
    check(bridge::has_failed(r) && r.completion_ids.empty() && r.rewards.empty(),
          name(r) + " stands in for a sample and could be trained on");
    group.stand_ins.push_back(r.rollout_id);
  }
  for (const auto& [id, group] : groups) {
    check(group.stand_ins.empty() || group.good >= min_group_size,
          "group " + std::to_string(id) + " is trained on with " + std::to_string(group.good) +
              " samples");
    for (const std::string& stand_in : group.stand_ins) {
      acknowledged(stand_in, id, group.newest);
      ++stand_ins_;
    }
  }
}

void Judge::check_repetition(const bridge::Rollout& r) {
  std::string& last = trained_id_[{r.group_id, r.sample_index}];
  check(last == r.rollout_id || !acknowledged_.contains(last),
        name(r) + " is trained on, the journal has " + last + " for its sample");
  last = r.rollout_id;
}

void Judge::check_contents(const bridge::Rollout& r) {
  for (const SampledPart& part : parts_of(r)) {
    const auto found = contents_.find({part.trainer_term, part.version});
    check(found != contents_.end(), name(r) + " names weights that were never published");
    // A session may go on under a later start of the trainer; its rollout names the first.
    const auto named = contents_.find({r.trainer_term, part.version});
    for (const auto& published : {found, named}) {
      check(published == contents_.end() || part.content == published->second,
            name(r) + " was sampled from weights " + std::to_string(part.content) +
                ", the version it names is another");
    }
  }
}

void Judge::popped(const bridge::Rollout& r) {
  check(popped_.insert({r.group_id, r.sample_index}).second, name(r) + ": its sample came before");
  check_contents(r);
}

void Judge::check_images(const bridge::RolloutBatch& batch) {
  std::map<std::string, const bridge::Image*> by_hash;
  for (const bridge::Image& image : batch.images) {
    check(by_hash.emplace(image.head.hash, &image).second,
          "image " + image.head.hash + " comes twice with a step");
  }
  for (const bridge::Rollout& r : batch.rollouts) {
    for (const bridge::ConversationImage& said : r.images) {
      const int64_t token = r.completion_ids.at(static_cast<std::size_t>(said.begin));
      const bridge::Image made = picture(token - kFirstPictureToken);
      check(said.head() == made.head, name(r) + " names another image than it was made with");
      const auto found = by_hash.find(said.hash);
      check(found != by_hash.end(), name(r) + " is trained on without image " + said.hash);
      check(std::ranges::equal(found->second->rgb.bytes, made.rgb.bytes),
            name(r) + " is trained on with other pixels than image " + said.hash + " has");
    }
  }
}

// Reads the records by the description in journal.h, up to the first that is torn or damaged.
void Judge::journal_is(std::span<const std::byte> file) {
  constexpr std::size_t kMagicBytes = 8;
  constexpr uint32_t kImageRecord = 6;
  struct Head {
    uint32_t bytes, kind;
    uint64_t xxh3;
  };
  std::set<std::string> seen;
  for (std::size_t at = kMagicBytes; at + sizeof(Head) <= file.size();) {
    Head head{};
    std::memcpy(&head, file.data() + at, sizeof head);
    at += sizeof head;
    if (head.bytes > file.size() - at) {
      return;
    }
    const auto payload = file.subspan(at, head.bytes);
    if (XXH3_64bits_withSeed(payload.data(), payload.size(), head.kind) != head.xxh3) {
      return;
    }
    at += head.bytes;
    if (head.kind == kImageRecord) {
      const auto message = bridge::parse_flat(payload, {});
      const std::string hash = bridge::read_image_head(message.value()).value().hash;
      check(seen.insert(hash).second, "image " + hash + " is journalled twice");
    }
  }
}

void Judge::trained(int64_t step, const bridge::RolloutBatch& batch, int64_t samples,
                    int64_t max_staleness, int64_t min_group_size) {
  const std::vector<bridge::Rollout>& rollouts = batch.rollouts;
  check_images(batch);
  check(step == last_step_ + 1,
        "step " + std::to_string(step) + " after " + std::to_string(last_step_));
  last_step_ = step;
  check(static_cast<int64_t>(rollouts.size()) == samples,
        "step " + std::to_string(step) + " has " + std::to_string(rollouts.size()) + " rollouts");
  check_stand_ins(rollouts, min_group_size);
  for (const bridge::Rollout& r : rollouts) {
    check_repetition(r);
    check(trained_.emplace(std::pair(r.group_id, r.sample_index), step).second,
          name(r) + ": its sample is trained on twice");
    for (const bridge::VersionSpan& span : r.versions) {
      check(span.version <= step - 1 && span.version >= step - 1 - max_staleness,
            name(r) + " of version " + std::to_string(span.version) + " in step " +
                std::to_string(step));
    }
    for (const SampledPart& part : parts_of(r)) {
      const auto found = lineage_.find(part.version);
      check(found != lineage_.end() && found->second == part.content,
            name(r) + " is of weights that the run does not descend from");
    }
  }
}

}  // namespace ringside::simulator
