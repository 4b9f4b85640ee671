// Source of a step's rollouts on trainer rank 0: a live bridge or a recorded file.
// broadcast_rollouts() sends them to the other ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/models/weight_export.h"
#include "rl/config/config.h"
#include "rl/rollouts/source_counters.h"
#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/trainer/held_out_samples.h"
#include "sp/mesh/communicator.h"

namespace ringside::rl {

// An evaluation by the workers of a source.
struct HeldOutWork {
  int64_t prompts = 0;                   // held-out prompts, from number 0
  int64_t samples = 1;                   // completions of each
  std::chrono::milliseconds patience{};  // longest time without a new completion
  std::function<int()> stop_signal{};    // not 0 ends the wait
};
struct HeldOutAnswers {
  std::vector<bridge::HeldOutSample> samples{};  // all, in order of prompt and sample; or none
  std::string missing{};                         // why there are none
};

class RolloutSource {
 public:
  virtual ~RolloutSource() = default;

  // The sink that publishes the weights of `version`, from which the rollouts of `next_step` are
  // sampled; empty where nobody wants them. Called once before the first step with the version of
  // the loaded weights, and after every update with the new version. The sink does not wait for
  // workers. It throws when the source has failed or the weights cannot be written.
  virtual engine::WeightSink weight_sink(int64_t version, int64_t next_step) = 0;

  // The messages of all rollouts of `step`, whole groups in order, validated and admitted, then
  // those of the images that their conversations name; nullopt if they are not complete within
  // `timeout`. Blocks: up to `timeout`. Throws: when the source has failed.
  virtual std::optional<std::vector<bridge::FlatRollout>> poll(
      int64_t step, std::chrono::milliseconds timeout) = 0;

  // The reference answer of the group's prompt; empty if the source knows none.
  virtual std::string reference_answer(int64_t group_id) { return {}; }

  // record_kind() of the record that the group's prompt is of; 0 where records choose nothing.
  virtual int64_t kind_of_group(int64_t group_id) { return 0; }

  // Whether evaluate() works: the source has workers that make samples of held-out prompts.
  virtual bool has_evaluation() const { return false; }
  // Completions of held-out prompts by the workers, under the weights published last.
  // Blocks: until all are there, none has come for work.patience, or a stop is asked for.
  // Throws: when the source has failed; std::logic_error without has_evaluation().
  virtual HeldOutAnswers evaluate(const HeldOutWork& work);

  // What a step's rollouts say of their prompts, before later steps are sampled: with
  // data.curriculum it chooses their prompts. Call once a step, before its weights are published.
  virtual void observe(int64_t step, std::span<const bridge::Rollout> rollouts) {}
  // What a checkpoint of `step` must hold of that, for TrainingState::curriculum.
  virtual std::string curriculum_state(int64_t step) const { return {}; }

  // Counters of the rollouts received since this source was created.
  virtual SourceCounters counters() const { return {}; }

  // Call when the checkpoint of `step` is on disk: rollouts up to it need not be kept.
  virtual void checkpointed(int64_t step) {}

  // Tells the workers that the run is over.
  // Blocks: up to some 35 s, while a version is encoded and messages are sent.
  virtual void finish() {}
};

// Reads a recorded file step by step and repeats it at its end. Ignores weights. It cannot sample
// other prompts: dynamic_sampling = refill behaves like drop.
// Throws: std::runtime_error naming file and line when the file is unusable (see read_rollout_file)
// or a rollout breaks a rule of check_recorded(); as recorded_kinds() where records choose.
// Blocks: until the file is read.
std::unique_ptr<RolloutSource> make_file_source(const std::filesystem::path& path,
                                                const Config& config);

// The messages of rollouts that did not come over the bridge.
std::vector<bridge::FlatRollout> flatten_rollouts(std::span<const bridge::Rollout> rollouts);

struct NextRollouts {
  std::vector<bridge::Rollout> rollouts;
  std::vector<bridge::Image> images;  // of their conversations, each once
  std::vector<int64_t> kinds = {};    // of the rollouts, as kind_of_group() says
  int stop_signal = 0;                // not 0: a rank was asked to stop, and there are no rollouts
};

// The step's rollouts on every rank. Rank 0 polls `source` until they are complete; the other ranks
// pass nullptr. The wait ends on all ranks when stop_signal() is not 0 on one of them.
// Collective over: `world`, in rounds of at most `round` each.
// Blocks: until the rollouts are complete or a rank is asked to stop.
// Throws: on rank 0 what RolloutSource::poll throws; c10::Error when the collectives fail, when
// rollouts do not decode, or when another rank than 0 has a source.
NextRollouts broadcast_rollouts(RolloutSource* source, int64_t step, sp::Communicator& world,
                                std::chrono::milliseconds round,
                                const std::function<int()>& stop_signal);

}  // namespace ringside::rl
