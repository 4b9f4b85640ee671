// Training on the stand-in accelerator: metrics, weights and moments have the CPU's bits on every
// layout, and no tensor is on a wrong device, unordered or waited for.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rl/data/rollout_file.h"
#include "rl/setup/sharding.h"
#include "rl/trainer/learner.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/standin/ranks.h"
#include "tests/support/training_cases.h"

using namespace ringside;
using test::bytes_of;
using test::config_of;
using test::kAlgorithms;
using test::kDtypes;
using test::kLayouts;
using test::kRecomputations;
using test::metrics_of;
using test::Part;
using test::tensor_files;
namespace fs = std::filesystem;

namespace {

const fs::path kGoldens = RINGSIDE_GOLDENS "/regression";

test::Models golden_models() {
  return test::Models(nlohmann::json::parse(std::ifstream(kGoldens / "policy/config.json")));
}

void train(const rl::Config& config, const fs::path& run_dir, const sp::Mesh& mesh,
           const sp::ProcessGroups& comms) {
  test::train(config, kGoldens / "plain.jsonl", run_dir, mesh, comms);
}

void check_same_bits(const rl::Config& config) {
  const test::TemporaryDirectory cpu, device;
  const auto axes = rl::sharding_axes(config.parallel);
  test::run_ranks_in_memory(
      rl::mesh_shape(config.parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        train(config, cpu.path(), mesh, comms);
      },
      axes);
  const standin::Scope scope;
  standin::run_standin_ranks_in_memory(
      rl::mesh_shape(config.parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms, c10::Device) {
        train(config, device.path(), mesh, comms);
      },
      std::chrono::seconds(20), axes);
  CHECK(scope.text() == "");
  const auto expected = metrics_of(cpu.path());
  REQUIRE(expected.size() == 3);
  CHECK(metrics_of(device.path()) == expected);
  const auto files = tensor_files(cpu.path());
  CHECK(files.size() >= 2);
  CHECK(tensor_files(device.path()) == files);
  for (const std::string& file : files) {
    INFO(file);
    CHECK(bytes_of(device.path() / file) == bytes_of(cpu.path() / file));
  }
}

}  // namespace

// One value of each part against the first of the others, and the richest together.
TEST_CASE("training on the stand-in has the CPU's bits") {
  const test::Models models = golden_models();
  const Part qwen3 = models.part("qwen3_tied");
  std::vector<std::vector<Part>> cases;
  for (const Part& layout : kLayouts) {
    cases.push_back({qwen3, layout, kAlgorithms[0], kDtypes[0], kRecomputations[0]});
  }
  for (const char* model : {"qwen2", "llama"}) {
    cases.push_back(
        {models.part(model), kLayouts[0], kAlgorithms[0], kDtypes[0], kRecomputations[0]});
  }
  cases.push_back(
      {models.part("qwen3_moe"), kLayouts[2], kAlgorithms[1], kDtypes[1], kRecomputations[1]});
  const Part deepseek = models.part("deepseek_v3");
  cases.push_back({deepseek, kLayouts[2], kAlgorithms[0], kDtypes[1], kRecomputations[2]});
  cases.push_back({deepseek,
                   kLayouts[6],
                   kAlgorithms[0],
                   kDtypes[0],
                   kRecomputations[0],
                   {"offloaded", {"optimizer.offload=full"}}});
  // Delta nets whose states travel, whose heads are exchanged, and whose experts are divided.
  const Part hybrid = models.part("qwen3_next");
  const Part zigzag{"zigzag", {"sp.placement=zigzag"}};
  cases.push_back({hybrid, kLayouts[0], kAlgorithms[0], kDtypes[1], kRecomputations[1]});
  cases.push_back({hybrid, kLayouts[1], kAlgorithms[0], kDtypes[0], kRecomputations[4]});
  cases.push_back({hybrid, kLayouts[2], kAlgorithms[1], kDtypes[1], kRecomputations[2], zigzag});
  cases.push_back({hybrid, kLayouts[4], kAlgorithms[0], kDtypes[0], kRecomputations[0], zigzag});
  cases.push_back({hybrid,
                   kLayouts[1],
                   kAlgorithms[0],
                   kDtypes[0],
                   {"experts of 2 ranks", {"parallel.expert_parallel_size=2"}}});
  // Tensor ranks: a critic beside latent attention and experts, and delta nets on half of the
  // heads.
  cases.push_back({deepseek, kLayouts[7], kAlgorithms[1], kDtypes[1], kRecomputations[2]});
  cases.push_back({hybrid,
                   kLayouts[7],
                   kAlgorithms[0],
                   kDtypes[0],
                   kRecomputations[1],
                   {"ring 2, experts of 4 ranks",
                    {"parallel.ringattn_parallel_size=2", "parallel.expert_parallel_size=4"}}});
  cases.push_back({qwen3, kLayouts[0], kAlgorithms[1], kDtypes[0], kRecomputations[0]});
  cases.push_back({qwen3, kLayouts[2], kAlgorithms[1], kDtypes[1], kRecomputations[1]});
  cases.push_back({qwen3, kLayouts[1], kAlgorithms[2], kDtypes[1], kRecomputations[0]});
  cases.push_back({qwen3, kLayouts[3], kAlgorithms[2], kDtypes[0], kRecomputations[1]});
  cases.push_back({qwen3, kLayouts[2], kAlgorithms[0], kDtypes[1], kRecomputations[2]});
  cases.push_back({qwen3, kLayouts[0], kAlgorithms[0], kDtypes[0], kRecomputations[3]});
  cases.push_back({qwen3, kLayouts[1], kAlgorithms[1], kDtypes[0], kRecomputations[4]});
  cases.push_back({qwen3, kLayouts[3], kAlgorithms[0], kDtypes[1], kRecomputations[4]});
  cases.push_back({qwen3, kLayouts[2], kAlgorithms[1], kDtypes[2], kRecomputations[2]});
  for (const auto& parts : cases) {
    std::string name;
    for (const Part& part : parts) {
      name += (name.empty() ? "" : ", ") + part.name;
    }
    DYNAMIC_SECTION(name) { check_same_bits(config_of(parts)); }
  }
}

// What one training step costs on rank 0's device, beside loading and saving.
standin::Counts step_counts(const rl::Config& config, int64_t& optimizer_steps) {
  const test::TemporaryDirectory directory;
  standin::Scope scope;
  standin::run_standin_ranks_in_memory(
      rl::mesh_shape(config.parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms, c10::Device) {
        rl::TrainingRun run({config, directory.path(), 1, {}}, mesh, comms);
        rl::Learner learner(config, run.ranks(), run.policy(), run.state());
        auto batch = rl::make_step_batch(
            rl::read_rollout_file(kGoldens / "plain.jsonl", config.rollout.group_size), config);
        comms.control(sp::axes::kWorld)->all_gather(at::zeros({1}), "every rank is ready");
        if (mesh.rank() == 0) {
          scope.reset_counts();
        }
        comms.control(sp::axes::kWorld)->all_gather(at::zeros({1}), "counts begin");
        auto mini_batches = learner.collate(batch);
        learner.score(mini_batches, batch);
        const auto advantages = learner.compute_advantages(batch);
        const auto updates = learner.update(mini_batches, batch, advantages.sample_score);
        if (mesh.rank() == 0) {
          optimizer_steps = static_cast<int64_t>(updates.policy.size() + updates.critic.size());
          REQUIRE(mini_batches.front().micro_batches.size() > 1);
        }
      },
      std::chrono::seconds(20), rl::sharding_axes(config.parallel));
  CHECK(scope.text() == "");
  return scope.counts(0);
}

void check_waits(const rl::Config& config) {
  int64_t optimizer_steps = 0;
  const auto counts = step_counts(config, optimizer_steps);
  CAPTURE(counts.host_syncs, counts.blocking_uploads);
  REQUIRE(optimizer_steps >= 2);
  CHECK(standin::Counts::sum(counts.host_syncs) == optimizer_steps + 1);
  CHECK(counts.blocking_uploads.empty());
  CHECK(counts.uploads > 0);
}

TEST_CASE("a step waits for the device once an optimizer step and once for its scores") {
  const test::Models models = golden_models();
  std::vector<std::vector<Part>> cases;
  for (const Part& layout : {kLayouts[0], kLayouts[2], kLayouts[4]}) {
    for (const Part& algorithm : kAlgorithms) {
      cases.push_back({layout, algorithm});
    }
  }
  cases.push_back({kLayouts[2], kAlgorithms[0], kDtypes[2], kRecomputations[3]});
  cases.push_back({kLayouts[2], kAlgorithms[0], kRecomputations[4]});
  cases.push_back({kLayouts[7], kAlgorithms[1], kDtypes[1], kRecomputations[1]});
  for (const std::vector<Part>& parts : cases) {
    std::vector<Part> all{models.part("qwen3_tied")};
    std::string name;
    for (const Part& part : parts) {
      all.push_back(part);
      name += part.name + ", ";
    }
    DYNAMIC_SECTION(name) { check_waits(config_of(all)); }
  }
}

TEST_CASE("states that pass between ranks cost no wait and no blocking upload") {
  const test::Models models = golden_models();
  const Part zigzag{"zigzag", {"sp.placement=zigzag"}};  // for rings alone
  const std::vector<std::vector<Part>> layouts{{kLayouts[0]}, {kLayouts[1]}, {kLayouts[2], zigzag}};
  for (std::vector<Part> parts : layouts) {
    DYNAMIC_SECTION(parts[0].name) {
      parts.insert(parts.end(),
                   {models.part("qwen3_5"), kAlgorithms[0], kDtypes[1], kRecomputations[1]});
      check_waits(config_of(parts));
    }
  }
}

// Every combination: minutes. Run it by hand: test_standin_training "[grid]".
TEST_CASE("training on the stand-in has the CPU's bits in every combination", "[.grid]") {
  const test::Models models = golden_models();
  for (const char* model : {"qwen3_tied", "qwen2", "llama"}) {
    for (const Part& layout : kLayouts) {
      for (const Part& algorithm : kAlgorithms) {
        for (const Part& dtype : kDtypes) {
          for (const Part& recomputation : kRecomputations) {
            CAPTURE(model, layout.name, algorithm.name, dtype.name, recomputation.name);
            check_same_bits(
                config_of({models.part(model), layout, algorithm, dtype, recomputation}));
          }
        }
      }
    }
  }
}
