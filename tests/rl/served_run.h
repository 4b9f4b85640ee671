// A trainer, a rollout worker and the inference server it drives, all in the process.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "rl/publish/weight_snapshot.h"
#include "rl/worker/server_worker.h"
#include "tests/rl/policy_server.h"
#include "tests/rollout_bridge/driver.h"
#include "tests/support/catch.h"

namespace ringside::test {

using namespace bridge::test;

class ServedRun {
 public:
  // Two samples a group, temperature 0.8; `edit` changes the rest before the worker starts.
  explicit ServedRun(const std::function<void(rl::Config&)>& edit = [](rl::Config&) {});
  ~ServedRun();

  // Weights of a version are drawn from its number.
  std::shared_ptr<const bridge::WeightSnapshot> weights(int64_t version) const;
  void publish(int64_t version) { trainer_->publish(weights(version)); }
  // The trainer's process dies and comes back at the same addresses as the next trainer_term, with
  // its journal.
  void restart_trainer();
  void grant(int64_t first, int64_t count) { trainer_->grant(groups(first, count, 2, 0)); }
  // The next rollouts, each with the log-probs of the version it names; fewer when the patience
  // runs out.
  std::vector<bridge::Rollout> take(std::size_t count);

  const rl::Config& config() const { return config_; }
  PolicyServer& server() { return *server_; }
  TestTrainer& trainer() { return *trainer_; }
  // The worker's clock jumps ahead.
  void advance(std::chrono::milliseconds by) { ahead_ms_ += by.count(); }
  // Why the worker ended by itself; empty while it runs.
  std::string worker_error() const;

 private:
  TempDir dir_;
  rl::Config config_;
  int64_t trainer_term_ = 1;
  std::unique_ptr<PolicyServer> server_;
  std::unique_ptr<TestTrainer> trainer_;
  std::unique_ptr<rl::ShadowModel> judge_;
  mutable std::mutex mutex_;
  std::string worker_error_;
  std::atomic<int64_t> ahead_ms_{0};
  std::jthread worker_;
};

// Where `event` stands in the log from `begin` on; the log's length where it does not.
std::size_t find_event(const std::vector<std::string>& log, const std::string& event,
                       std::size_t begin = 0);

}  // namespace ringside::test
