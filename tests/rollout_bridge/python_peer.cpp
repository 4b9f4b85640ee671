// A trainer for client_test.py: publishes weights, grants groups, prints what arrived as JSON
// lines. Argument: a folder for keys, or the word settings for a trainer that states some. Guards
// the claim that PROTOCOL.md and the Python client describe the same protocol as the C++.
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/rollout_bridge/driver.h"

namespace ringside::bridge::test {
namespace {

nlohmann::json describe(const Rollout& r) {
  nlohmann::json branches = nlohmann::json::array();
  for (const Branch& b : r.branches) {
    branches.push_back({b.begin, b.context_end});
  }
  nlohmann::json images = nlohmann::json::array();
  for (const ConversationImage& i : r.images) {
    images.push_back({i.hash, i.begin, i.end, i.height, i.width});
  }
  return {{"id", r.rollout_id},
          {"group", r.group_id},
          {"sample", r.sample_index},
          {"prompt", r.prompt_ids},
          {"completion", r.completion_ids},
          {"logprobs", r.logprobs},
          {"mask", r.loss_mask},
          {"version", r.versions.front().version},
          {"epoch", r.trainer_term},
          {"rewards", r.rewards},
          {"turns", r.turn_offsets},
          {"turn_rewards", r.turn_rewards},
          {"advantages", r.advantages},
          {"branches", branches},
          {"images", images},
          {"routed_layers", r.routed_experts.layers},
          {"routed", {r.routed_experts.per_token, r.routed_experts.id_bytes}},
          {"routed_ids", r.routed_experts.ids},
          {"kept_counts", r.kept_sets.counts},
          {"kept_ids", r.kept_sets.ids},
          {"finish", finish_reason_name(r.finish_reason)}};
}

// One tensor that changes everywhere, two small ones, one with few changes and one with none.
std::vector<NamedBuffer> python_tensors(int64_t version) {
  std::vector<NamedBuffer> out = make_tensors(version, 300000);
  std::vector<uint16_t> sparse(200000);
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    sparse[i] = static_cast<uint16_t>(i * 7);
  }
  for (std::size_t i = 13; version > 0 && i < sparse.size(); i += 401) {
    sparse[i] ^= 0x8001;
  }
  out.push_back({"sparse.weight", "BF16", {1000, 200}, Buffer::own(std::move(sparse))});
  out.push_back({"still.weight", "F64", {3}, Buffer::own(std::vector<double>{1, -0.0, 3})});
  return out;
}

// With a folder: CURVE, the trainer's keys and the worker's from the files ringside keygen would
// write.
std::optional<CurveServer> keys_in(const std::string& folder) {
  if (folder.empty()) {
    return std::nullopt;
  }
  for (const char* name : {"trainer", "worker"}) {
    write_key_pair(folder, name, make_key_pair());
  }
  const std::filesystem::path path(folder);
  return CurveServer{read_secret_key(path / "trainer.key").secret_key,
                     read_allowed_keys(path / "worker.pub")};
}

Settings shown_settings() {
  Settings settings;
  settings.temperature = 1.0;
  settings.top_p = 1.0;
  settings.top_k = 0;
  settings.vocab_size = 48;
  settings.stop_ids = {{2}};
  settings.reward_names = {{"exact_match"}};
  return settings;
}

bool serve(const std::string& key_folder, const Settings& settings) {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.trainer_term = 3;
  options.worker_timeout = std::chrono::milliseconds(5000);
  options.curve = keys_in(key_folder);
  options.settings = settings;
  TestTrainer trainer(options);
  DeltaChain chain({});
  const auto first = make_snapshot("run", 3, 0, python_tensors(0));
  trainer.publish(chain.extend(first));
  trainer.grant(groups(0, 6, 3, 0));
  std::cout << nlohmann::json{{"address", trainer.rollout_address()},
                              {"root_hash", first->manifest.root_hash}}
            << std::endl;
  std::vector<Rollout> got = collect(trainer, 18);
  const bool committed = trainer.wait_for_commit(0, 1, kPatience);
  trainer.publish(chain.extend(make_snapshot("run", 3, 1, python_tensors(1))));
  trainer.grant(groups(6, 2, 3, 1));
  for (Rollout& r : collect(trainer, 6)) {
    got.push_back(std::move(r));
  }
  trainer.end("finished");
  for (int i = 0; i < 200 && !trainer.workers().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  nlohmann::json out;
  for (const Rollout& r : got) {
    out["rollouts"].push_back(describe(r));
  }
  const BridgeCounters counters = trainer.counters();
  out["committed"] = committed;
  out["accepted"] = counters.accepted;
  out["duplicate"] = counters.duplicate;
  out["images"] = counters.images;
  out["unknown_images"] = counters.unknown_images;
  out["delta_staged"] = counters.delta_staged;
  out["delta_refetched"] = counters.delta_refetched;
  out["rejected"] = counters.rejected;
  out["lost"] = counters.lost_workers;
  out["denied"] = counters.denied;
  out["left"] = trainer.workers().empty();
  std::cout << out << std::endl;
  return got.size() == 24;
}

}  // namespace
}  // namespace ringside::bridge::test

int main(int argc, char** argv) {
  using namespace ringside::bridge;
  const std::string word = argc > 1 ? argv[1] : "";
  const bool stated = word == "settings";
  return test::serve(stated ? "" : word, stated ? test::shown_settings() : Settings{}) ? 0 : 1;
}
