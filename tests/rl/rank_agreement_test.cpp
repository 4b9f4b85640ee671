// Guards: ranks that were started with different recipes, files or programs and train on, each on
// something else.
#include "rl/trainer/rank_agreement.h"

#include <fstream>
#include <mutex>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "rl/config/load.h"
#include "rl/rollouts/rollout_source.h"
#include "rl/trainer/source_fingerprints.h"
#include "rl/trainer/trainer.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;
namespace fs = std::filesystem;
using Catch::Contains;

namespace {

const fs::path kAgreementGoldens = fs::path(RINGSIDE_GOLDENS) / "regression";

rl::Config agreement_config(const std::vector<std::string>& words = {}) {
  std::vector<std::string> all{"model.path=" + (kAgreementGoldens / "policy").string(),
                               "rollout.group_size=4",
                               "rollout.prompts_per_step=2",
                               "rollout.max_completion_tokens=12",
                               "train.steps=1",
                               "parallel.ulysses_parallel_size=2",
                               "log.progress=lines"};
  all.insert(all.end(), words.begin(), words.end());
  return rl::load_config_or_throw({}, all);
}

void flip_last_weight(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-2, std::ios::end);
  const int before = file.get();
  file.seekp(-2, std::ios::end);
  file.put(static_cast<char>(before ^ 1));
}

// What each of two ranks throws when it calls `body`; "" for nothing.
std::vector<std::string> errors_of_ranks(const test::RankBody& body) {
  std::vector<std::string> errors(2);
  test::run_ranks({1, 1, 2}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    try {
      body(mesh, comms);
    } catch (const rl::RanksDiffer& error) {
      errors[mesh.rank()] = error.what();
    }
  });
  return errors;
}

}  // namespace

TEST_CASE("a key that differs between ranks is an error on all, with the key and both values") {
  const auto words = GENERATE(
      std::pair("optimizer.learning_rate=0.25",
                "optimizer.learning_rate: rank 0 has 1e-06, rank 1"
                " has 0.25"),
      std::pair("optimizer.beta2=0.5", "optimizer.beta2: rank 0 has 0.999, rank 1 has 0.5"),
      std::pair("algorithm.clip_high=0.5", "algorithm.clip_high: rank 0 has 0.2, rank 1 has 0.5"),
      std::pair("seed=3", "seed: rank 0 has 1, rank 1 has 3"),
      std::pair("train.steps=4", "train.steps: rank 0 has 1, rank 1 has 4"),
      std::pair("rollout.temperature=0.5", "rollout.temperature: rank 0 has 1.0, rank 1 has 0.5"));
  const auto facts = [&](int64_t rank) {
    return rl::configuration_facts(agreement_config(
        rank == 0 ? std::vector<std::string>{} : std::vector<std::string>{words.first}));
  };
  auto errors = errors_of_ranks([&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    rl::check_ranks_agree(facts(mesh.rank()), *comms.control(sp::axes::kLoss));
  });
  CHECK_THAT(errors[0], Contains(words.second) && Contains("nothing was trained"));
  CHECK(errors[0] == errors[1]);
  // The same through the store, before the groups exist.
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const sp::GroupRendezvous meeting{store, "127.0.0.1", std::chrono::seconds(20)};
  std::mutex mutex;
  test::run_threads(
      2,
      [&](int64_t rank) {
        std::string error;
        try {
          rl::check_ranks_agree(facts(rank), meeting, "configuration", rank, 2);
        } catch (const rl::RanksDiffer& differ) {
          error = differ.what();
        }
        const std::lock_guard lock(mutex);
        CHECK(error == errors[0]);
      },
      [] {});
}

TEST_CASE("ranks agree if only paths, threads, addresses and the style of the log differ") {
  const auto errors = errors_of_ranks([&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const std::string rank = std::to_string(mesh.rank());
    const auto config =
        agreement_config({"train.threads=" + std::to_string(mesh.rank() + 1),
                          "data.train=/somewhere/" + rank + ".jsonl",
                          "log.level=" + std::string(mesh.rank() == 0 ? "info" : "warn"),
                          "bridge.rollout_address=tcp://127.0.0.1:" + rank});
    rl::check_ranks_agree(rl::configuration_facts(config), *comms.control(sp::axes::kLoss));
  });
  CHECK(errors == std::vector<std::string>(2));
}

TEST_CASE("the sentence about many ranks names one and counts the others; long lists are cut") {
  std::vector<rl::RankFacts> facts(4, {{"seed", "1"}, {"same", "x"}});
  facts[2][0].value = "2";
  facts[3][0].value = "";
  CHECK(rl::differences_of_ranks(facts) ==
        std::vector<std::string>{
            "seed: rank 0 has 1, rank 2 has 2; 1 more ranks differ from rank 0"});
  // A fact of a group is compared with its own group only, and need not be everywhere.
  CHECK(rl::differences_of_ranks({{{"w", "1", "a"}}, {{"w", "2", "b"}}, {{"w", "1", "a"}}, {}})
            .empty());
  CHECK(rl::differences_of_ranks({{{"w", "1", "a"}}, {{"w", "2", "a"}}}) ==
        std::vector<std::string>{"w: rank 0 has 1, rank 1 has 2"});
  CHECK(rl::differences_of_ranks({{{"new", "1"}}, {}}) ==
        std::vector<std::string>{"new: rank 0 has 1, rank 1 has nothing"});
}

TEST_CASE("ranks that loaded different weights, policy, reference or critic, do not train") {
  const auto differing = GENERATE(std::string("policy"), "reference", "critic", "");
  const test::TemporaryDirectory dir;
  for (const char* model : {"policy", "critic"}) {
    fs::copy(kAgreementGoldens / model, dir.path() / model, fs::copy_options::recursive);
    flip_last_weight(dir.path() / model / "model.safetensors");
  }
  const auto errors = errors_of_ranks([&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const auto path = [&](const std::string& part) {
      const bool other = mesh.rank() == 1 && part == differing;
      return ((other ? dir.path() : kAgreementGoldens) / (part == "critic" ? part : "policy"))
          .string();
    };
    // With cp_fsdp_mode none each rank holds whole models, so that their weights are compared.
    const auto config = agreement_config(
        {"model.path=" + path("policy"), "model.reference_path=" + path("reference"),
         "algorithm.critic.model_path=" + path("critic"), "parallel.cp_fsdp_mode=none",
         "algorithm.kl_coef=0.1", "algorithm.preset=ppo"});
    rl::TrainingRun run({config, dir.path() / "run", 1, {}}, mesh, comms);
    const auto source = rl::make_file_source(kAgreementGoldens / "plain.jsonl", config);
    rl::train_rl(run, run.ranks().is_main() ? source.get() : nullptr);
  });
  if (differing.empty()) {
    CHECK(errors == std::vector<std::string>(2));
    return;
  }
  CHECK_THAT(errors[0], Contains("the loaded weights of the " + differing + ": rank 0 has "));
  CHECK(errors[0] == errors[1]);
  CHECK_FALSE(fs::exists(dir.path() / "run/checkpoint-final"));
}

TEST_CASE("ranks compare a reference whose matrices are packed, and train") {
  const test::TemporaryDirectory dir;
  const auto errors = errors_of_ranks([&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const auto config = agreement_config(
        {"lora.rank=2", "lora.alpha=4", "lora.base=int8", "algorithm.kl_coef=0.1"});
    rl::TrainingRun run({config, dir.path() / "run", 1, {}}, mesh, comms);
    const auto source = rl::make_file_source(kAgreementGoldens / "plain.jsonl", config);
    rl::train_rl(run, run.ranks().is_main() ? source.get() : nullptr);
  });
  CHECK(errors == std::vector<std::string>(2));
  CHECK(fs::exists(dir.path() / "run/checkpoint-final"));
}

TEST_CASE("the fingerprint of a large file covers its size, both ends and blocks between them") {
  const test::TemporaryDirectory dir;
  const fs::path path = dir.path() / "weights.safetensors";
  constexpr int64_t kSize = int64_t{80} << 20;
  std::ofstream(path) << "";
  fs::resize_file(path, kSize);  // a sparse file of zeros
  const std::string before = rl::fingerprint_of({path});
  CHECK(rl::fingerprint_of({path}) == before);
  const auto change = [&](int64_t at, int64_t bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file << std::string(static_cast<std::size_t>(bytes), 'x');
  };
  const int64_t at = GENERATE(int64_t{0}, int64_t{1} << 19, kSize / 2, kSize - 1);
  change(at, std::min<int64_t>(kSize - at, 1 << 15));
  CHECK(rl::fingerprint_of({path}) != before);
}

TEST_CASE("the files of a model and of data are found by key, and other files do not count") {
  const test::TemporaryDirectory dir;
  fs::copy(kAgreementGoldens / "policy", dir.path() / "model");
  std::ofstream(dir.path() / "a.jsonl") << "{}\n";
  std::ofstream(dir.path() / "b.jsonl") << "{}\n";
  const auto config = agreement_config({"model.path=" + (dir.path() / "model").string(),
                                        "data.train=" + (dir.path() / "*.jsonl").string()});
  const auto before = rl::source_fingerprints(config);
  CHECK(before.size() == 2);
  std::ofstream(dir.path() / "model/README.md") << "text";
  CHECK(rl::source_fingerprints(config) == before);
  std::ofstream(dir.path() / "model/config.json", std::ios::app) << "\n";
  CHECK(rl::source_fingerprints(config).at("model.path") != before.at("model.path"));
  CHECK(rl::source_fingerprints(config).at("data.train") == before.at("data.train"));
  std::ofstream(dir.path() / "c.jsonl") << "{}\n";
  CHECK(rl::source_fingerprints(config).at("data.train") != before.at("data.train"));
}
