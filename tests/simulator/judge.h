// What must hold whatever fails: the invariants, checked as things happen. A breach throws Breach.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/trainer/held_out_samples.h"
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::simulator {

struct Breach : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a part of a rollout was really sampled from.
struct SampledPart {
  int64_t trainer_term;
  int64_t version;
  int64_t content;
};
using SampledFor = std::function<std::vector<SampledPart>(const bridge::Rollout&)>;

// Weights are told apart by a number, their content. A sampler puts the content it really ran into
// the first token of a completion, unless sampled_for() knows it.
class Judge {
 public:
  Judge();
  void judge_contents_by(SampledFor sampled_for) { sampled_for_ = std::move(sampled_for); }

  // The trainer made or restored weights; what was trained after `version` is undone.
  void published(int64_t trainer_term, int64_t version, int64_t content);
  // Rollouts of these weights are lost with them.
  void restored(int64_t version);

  // An acknowledgement of ACCEPTED left the trainer.
  // version: the newest that it was sampled under.
  void acknowledged(const std::string& rollout_id, int64_t group_id, int64_t version);
  // The trainer's owner said that the group's rollouts may go.
  void released(int64_t group_id);
  // The disk may have lost what was not synced, and the configuration accepts that.
  void forgive_losses() { acknowledged_.clear(); }
  // A start of the trainer: what its journal gave back.
  void started(const std::set<std::string>& replayed);

  // A worker sends a rollout in a way that breaks the protocol, under this id.
  void spoiled(const std::string& rollout_id);
  // The trainer refused a rollout for good. What it asked for and what keeps the rules is never
  // refused. Returns true for a rollout that breaks the protocol.
  bool rejected(const std::string& rollout_id, const std::string& detail);
  // The journal lost records that tell which groups were granted.
  void forgive_unknown_groups() { forgives_unknown_groups_ = true; }
  // A worker was handed these weights to install.
  void installed(const bridge::WeightSnapshot& snapshot);
  // All samples of an evaluation of `content` came back.
  void evaluated(const std::vector<bridge::HeldOutSample>& samples, int64_t prompts,
                 int32_t samples_each, int64_t content);

  // A rollout reached the trainer's owner.
  void popped(const bridge::Rollout& rollout);
  // A step is trained on these rollouts, with these images. min_group_size: fewest rollouts that
  // did not fail in a group with stand-ins.
  void trained(int64_t step, const bridge::RolloutBatch& batch, int64_t samples,
               int64_t max_staleness, int64_t min_group_size);
  // What the journal's file holds.
  void journal_is(std::span<const std::byte> file);

  int64_t checks() const { return checks_; }
  int64_t stand_ins() const { return stand_ins_; }

 private:
  // What the rollout was sampled from; nothing for a stand-in.
  std::vector<SampledPart> parts_of(const bridge::Rollout& rollout) const;
  // Groups with stand-ins have enough other rollouts, and the stand-ins stay in the journal.
  void check_stand_ins(const std::vector<bridge::Rollout>& rollouts, int64_t min_group_size);
  // A sample that is trained on again is of the same rollout, if the journal still has that.
  void check_repetition(const bridge::Rollout& rollout);
  void check(bool holds, const std::string& what);
  // Each span of versions was sampled from the content of its version.
  void check_contents(const bridge::Rollout& rollout);
  // The images of a step are those that its rollouts were made with, each once.
  void check_images(const bridge::RolloutBatch& batch);

  SampledFor sampled_for_;
  std::map<std::pair<int64_t, int64_t>, int64_t> contents_;  // (trainer_term, version) -> content
  std::map<int64_t, int64_t> lineage_;                       // version -> content
  std::map<std::string, std::pair<int64_t, int64_t>> acknowledged_;  // id -> group, version
  std::set<std::pair<int64_t, int32_t>> popped_;                     // since the trainer's start
  std::map<std::pair<int64_t, int32_t>, int64_t> trained_;           // sample -> step
  std::map<std::pair<int64_t, int32_t>, std::string> trained_id_;    // sample -> its last rollout
  std::set<std::string> spoiled_;
  int64_t stand_ins_ = 0;
  bool forgives_unknown_groups_ = false;
  int64_t last_step_ = 0;
  int64_t checks_ = 0;
};

}  // namespace ringside::simulator
