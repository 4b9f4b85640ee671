// What every rollout worker does with the events of its link that are not work: it logs them, and
// knows when the run is over. Torch-free.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "rollout_bridge/worker/trainer_link.h"

namespace ringside::rl {

struct WorkerSettings {
  std::string worker_id;
  // Where the trainer writes its addresses; empty when the configuration's bridge.* name them.
  std::filesystem::path endpoint_file;
  // Asked between messages and batches; true leaves with BYE.
  std::function<bool()> should_stop;
  // The time; tests have one of their own.
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

class LinkEvents {
 public:
  explicit LinkEvents(WorkerSettings settings);

  void handle(const bridge::Connected& connected) const;
  void handle(const bridge::RolloutRejected& rejected) const;
  void handle(const bridge::Ended& ended);
  // Throws std::runtime_error: the trainer refuses this worker for good.
  void handle(const bridge::Failed& failed) const;
  void handle(const bridge::Disconnected& disconnected);

  bool ended() const { return ended_; }
  // The run is over or the worker was asked to stop.
  bool is_over() const { return ended_ || settings_.should_stop(); }
  const WorkerSettings& settings() const { return settings_; }

 private:
  WorkerSettings settings_;
  bool ended_ = false;
};

}  // namespace ringside::rl
