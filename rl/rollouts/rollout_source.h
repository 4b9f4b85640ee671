// Where a step's rollouts come from, seen from trainer rank 0: a live bridge or a recorded file.
// The other ranks get them from rank 0 by broadcast_rollouts().
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/decoder.h"
#include "rl/config/config.h"
#include "rl/rollouts/source_counters.h"
#include "rollout_bridge/protocol/schema.h"
#include "sp/mesh/communicator.h"

namespace ringside::rl {

class RolloutSource {
 public:
  virtual ~RolloutSource() = default;

  // Called once before the first step, with the version of the loaded weights, and after every
  // update with the new one. `next_step` is the step whose rollouts are wanted next. Does not wait
  // for workers.
  virtual void publish(const engine::Decoder& decoder, int64_t version, int64_t next_step) = 0;

  // All rollouts of `step`, whole groups in order, or nothing when they are not there within
  // `timeout`. Blocks up to timeout. Throws when the source has failed.
  virtual std::optional<std::vector<bridge::Rollout>> poll(int64_t step,
                                                           std::chrono::milliseconds timeout) = 0;

  // What became of the rollouts that came in, since this source was made.
  virtual SourceCounters counters() const { return {}; }

  // The checkpoint of `step` is on disk: rollouts up to it need not be kept.
  virtual void checkpointed(int64_t step) {}

  // The run is over: tells the workers.
  virtual void finish() {}
};

// Steps through a recorded file, repeating it when it ends; knows no weights. It cannot sample
// other prompts: dynamic_sampling = refill trains on its groups as drop does. Throws
// std::runtime_error naming file and line when it is unusable (see read_rollout_file) or a rollout
// breaks a rule of check_recorded().
std::unique_ptr<RolloutSource> make_file_source(const std::filesystem::path& path,
                                                const Config& config);

struct NextRollouts {
  std::vector<bridge::Rollout> rollouts;
  int stop_signal = 0;  // a rank was asked to stop: then there are no rollouts
};

// The step's rollouts on every rank: rank 0 polls `source` until they are there, the others pass
// nullptr, and the wait ends for all of them when stop_signal() is not 0 on one. Collective over
// `world`, in rounds that last at most `round` each.
NextRollouts broadcast_rollouts(RolloutSource* source, int64_t step, sp::Communicator& world,
                                std::chrono::milliseconds round,
                                const std::function<int()>& stop_signal);

}  // namespace ringside::rl
