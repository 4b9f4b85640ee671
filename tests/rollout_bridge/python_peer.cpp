// A trainer for client_test.py: publishes weights, grants groups, prints what arrived as JSON
// lines. Guards the claim that PROTOCOL.md and the Python client describe the same protocol as the
// C++.
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/rollout_bridge/driver.h"

namespace ringside::bridge::test {
namespace {

nlohmann::json describe(const Rollout& r) {
  nlohmann::json branches = nlohmann::json::array();
  for (const Branch& b : r.branches) branches.push_back({b.begin, b.context_end});
  return {{"id", r.rollout_id},
          {"group", r.group_id},
          {"sample", r.sample_index},
          {"prompt", r.prompt_ids},
          {"completion", r.completion_ids},
          {"logprobs", r.logprobs},
          {"mask", r.loss_mask},
          {"version", r.versions.front().version},
          {"epoch", r.run_epoch},
          {"rewards", r.rewards},
          {"turns", r.turn_offsets},
          {"turn_rewards", r.turn_rewards},
          {"branches", branches},
          {"finish", finish_reason_name(r.finish_reason)}};
}

bool serve() {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.run_epoch = 3;
  options.worker_timeout = std::chrono::milliseconds(5000);
  TrainerEndpoint trainer(options);
  const auto first = make_snapshot("run", 3, 0, make_tensors(0, 300000));
  trainer.publish(first);
  trainer.grant(groups(0, 6, 3, 0));
  std::cout << nlohmann::json{{"address", trainer.rollout_address()},
                              {"root_hash", first->manifest.root_hash}}
            << std::endl;
  std::vector<Rollout> got = collect(trainer, 18);
  const bool committed = trainer.wait_for_commit(0, 1, kPatience);
  trainer.publish(make_snapshot("run", 3, 1, make_tensors(1, 300000)));
  trainer.grant(groups(6, 2, 3, 1));
  for (Rollout& r : collect(trainer, 6)) got.push_back(std::move(r));
  trainer.end("finished");
  for (int i = 0; i < 200 && !trainer.workers().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  nlohmann::json out;
  for (const Rollout& r : got) out["rollouts"].push_back(describe(r));
  const BridgeCounters counters = trainer.counters();
  out["committed"] = committed;
  out["accepted"] = counters.accepted;
  out["duplicate"] = counters.duplicate;
  out["rejected"] = counters.rejected;
  out["lost"] = counters.lost_workers;
  out["left"] = trainer.workers().empty();
  std::cout << out << std::endl;
  return got.size() == 24;
}

}  // namespace
}  // namespace ringside::bridge::test

int main() { return ringside::bridge::test::serve() ? 0 : 1; }
