// Handling of link events that carry no work, common to all rollout workers: logs them and detects
// the end of the run. Torch-free.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "rollout_bridge/worker/trainer_link.h"

namespace ringside::rl {

struct WorkerSettings {
  std::string worker_id;
  // File to which the trainer writes its addresses; empty if the configuration's bridge.* keys hold
  // them.
  std::filesystem::path endpoint_file;
  // Called between messages and batches. When it returns true, the worker leaves with BYE.
  std::function<bool()> should_stop;
  // Clock; tests substitute their own.
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

class LinkEvents {
 public:
  // Of one worker. settings.should_stop and now must be callable as long as it lives.
  explicit LinkEvents(WorkerSettings settings);

  // Each logs the event. The end of the run is remembered too. Disconnected reads the endpoint
  // file, which throws std::runtime_error if it does not parse.
  void handle(const bridge::Connected& connected) const;
  void handle(const bridge::RolloutRejected& rejected) const;
  void handle(const bridge::Ended& ended);
  // Throws: std::runtime_error, because the trainer rejects this worker permanently.
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
