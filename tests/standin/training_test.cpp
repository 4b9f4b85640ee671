// Training on the stand-in accelerator: metrics, weights and moments have the CPU's bits on every
// layout, and no tensor is on a wrong device, unordered or waited for.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rl/config/load.h"
#include "rl/data/rollout_file.h"
#include "rl/rollouts/rollout_source.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/trainer/learner.h"
#include "rl/trainer/trainer.h"
#include "rl/trainer/training_run.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/standin/ranks.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;
namespace fs = std::filesystem;

namespace {

const fs::path kGoldens = RINGSIDE_GOLDENS "/regression";
using Words = std::vector<std::string>;

struct Part {
  std::string name;
  Words words;
};

// A model directory of random weights: config.json alone.
class Models {
 public:
  Models() {
    auto config = nlohmann::json::parse(std::ifstream(kGoldens / "policy/config.json"));
    config["tie_word_embeddings"] = true;
    write("qwen3_tied", config);
    config["tie_word_embeddings"] = false;
    write("qwen3_moe", with_experts(config));
    config["architectures"] = {"Qwen2ForCausalLM"};
    config["model_type"] = "qwen2";
    write("qwen2", config);
    config["architectures"] = {"LlamaForCausalLM"};
    config["model_type"] = "llama";
    write("llama", config);
  }
  Part part(const std::string& name) const {
    return {name, {"model.path=" + (directory_.path() / name).string(), "model.init=random"}};
  }

 private:
  static nlohmann::json with_experts(nlohmann::json config) {
    config.update({{"model_type", "qwen3_moe"},
                   {"num_experts", 5},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 24},
                   {"norm_topk_prob", true}});
    return config;
  }
  void write(const std::string& name, const nlohmann::json& config) {
    fs::create_directories(directory_.path() / name);
    std::ofstream(directory_.path() / name / "config.json") << config;
  }
  test::TemporaryDirectory directory_;
};

const std::vector<Part> kLayouts{
    {"1", {}},
    {"ulysses 2", {"parallel.ulysses_parallel_size=2"}},
    {"ring 2 x ulysses 2",
     {"parallel.ringattn_parallel_size=2", "parallel.ulysses_parallel_size=2"}},
    {"all-gather 2", {"parallel.ringattn_parallel_size=2", "sp.ring_impl=all_gather"}},
    {"ring 2, gathered backward",
     {"parallel.ringattn_parallel_size=2", "sp.ring_backward=all_gather"}},
    {"dp 2", {"parallel.data_parallel_replicate_size=2"}},
    {"2 shards", {"parallel.data_parallel_shard_size=2"}}};
const std::vector<Part> kAlgorithms{
    {"grpo with reference", {"algorithm.kl_coef=0.05", "train.num_mini_batches=2"}},
    {"ppo with critic", {"algorithm.preset=ppo", "algorithm.num_iterations=2"}},
    {"gspo", {"algorithm.preset=gspo", "train.num_mini_batches=2"}}};
const std::vector<Part> kDtypes{
    {"fp32", {}}, {"bf16", {"model.dtype=bfloat16"}}, {"fp16", {"model.dtype=float16"}}};
const std::vector<Part> kRecomputations{
    {"keeps activations", {}},
    {"recomputes", {"model.recompute=full"}},
    {"recomputes without attention", {"model.recompute=selective"}},
    {"recomputes in tiles, offloaded",
     {"model.recompute=full", "model.mlp_tile_tokens=5", "model.offload_activations=true"}},
    {"recomputes without attention in tiles, offloaded",
     {"model.recompute=selective", "model.mlp_tile_tokens=64", "model.offload_activations=true"}}};

rl::Config config_of(const std::vector<Part>& parts) {
  Words words;
  for (const Part& part : parts) {
    words.insert(words.end(), part.words.begin(), part.words.end());
  }
  for (const char* word :
       {"rollout.prompts_per_step=4", "rollout.group_size=4", "train.steps=3",
        "train.tokens_per_micro_batch=32", "optimizer.warmup_steps=0", "eval.every=0"}) {
    words.emplace_back(word);
  }
  rl::Config config = rl::load_config_or_throw({}, words);
  rl::factor_context_parallel(config);
  return config;
}

void train(const rl::Config& config, const fs::path& run_dir, const sp::Mesh& mesh,
           const sp::ProcessGroups& comms) {
  rl::TrainingRun run({config, run_dir, config.train.steps, {}}, mesh, comms);
  const auto source =
      run.is_main_rank() ? rl::make_file_source(kGoldens / "plain.jsonl", config) : nullptr;
  rl::train_rl(run, source.get());
}

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool is_clock(const std::string& name) {
  for (const char* part : {"time", "seconds", "tokens_per", "wall", "_s"}) {
    if (name.find(part) != std::string::npos) {
      return true;
    }
  }
  return false;
}

// The lines of metrics.jsonl without clocks.
std::vector<nlohmann::json> metrics_of(const fs::path& run_dir) {
  std::vector<nlohmann::json> steps;
  std::ifstream in(run_dir / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    auto step = nlohmann::json::parse(line);
    for (auto it = step.begin(); it != step.end();) {
      it = is_clock(it.key()) ? step.erase(it) : std::next(it);
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

// The final weights, and checkpoints with masters and moments of the policy, and of the critic and
// the reference where there are.
std::vector<std::string> tensor_files(const fs::path& run_dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(run_dir)) {
    if (entry.path().extension() == ".safetensors") {
      names.push_back(fs::relative(entry.path(), run_dir).string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

void check_same_bits(const rl::Config& config) {
  const test::TemporaryDirectory cpu, device;
  test::run_ranks(rl::mesh_shape(config.parallel),
                  [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
                    train(config, cpu.path(), mesh, comms);
                  });
  const standin::Scope scope;
  standin::run_standin_ranks(rl::mesh_shape(config.parallel),
                             [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms,
                                 c10::Device) { train(config, device.path(), mesh, comms); });
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
  const Models models;
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
  standin::run_standin_ranks(
      rl::mesh_shape(config.parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms, c10::Device) {
        rl::TrainingRun run({config, directory.path(), 1, {}}, mesh, comms);
        rl::Learner learner(run);
        auto batch = rl::make_step_batch(
            rl::read_rollout_file(kGoldens / "plain.jsonl", config.rollout.group_size), config);
        comms.control(sp::axes::kLoss)->all_gather(at::zeros({1}), "every rank is ready");
        if (mesh.rank() == 0) {
          scope.reset_counts();
        }
        comms.control(sp::axes::kLoss)->all_gather(at::zeros({1}), "counts begin");
        const auto mini_batches = learner.collate(batch);
        learner.score(mini_batches, batch);
        learner.compute_advantages(batch);
        const auto updates = learner.update(mini_batches, batch);
        if (mesh.rank() == 0) {
          optimizer_steps = static_cast<int64_t>(updates.policy.size() + updates.critic.size());
          REQUIRE(mini_batches.front().micro_batches.size() > 1);
        }
      });
  CHECK(scope.text() == "");
  return scope.counts(0);
}

TEST_CASE("a step waits for the device once an optimizer step and once for its scores") {
  const Models models;
  std::vector<std::vector<Part>> cases;
  for (const Part& layout : {kLayouts[0], kLayouts[2], kLayouts[4]}) {
    for (const Part& algorithm : kAlgorithms) {
      cases.push_back({layout, algorithm});
    }
  }
  cases.push_back({kLayouts[2], kAlgorithms[0], kDtypes[2], kRecomputations[3]});
  cases.push_back({kLayouts[2], kAlgorithms[0], kRecomputations[4]});
  for (const std::vector<Part>& parts : cases) {
    std::vector<Part> all{models.part("qwen3_tied")};
    std::string name;
    for (const Part& part : parts) {
      all.push_back(part);
      name += part.name + ", ";
    }
    DYNAMIC_SECTION(name) {
      int64_t optimizer_steps = 0;
      const auto counts = step_counts(config_of(all), optimizer_steps);
      CAPTURE(counts.host_syncs, counts.blocking_uploads);
      REQUIRE(optimizer_steps >= 2);
      CHECK(standin::Counts::sum(counts.host_syncs) == optimizer_steps + 1);
      CHECK(counts.blocking_uploads.empty());
      CHECK(counts.uploads > 0);
    }
  }
}

// Every combination: minutes. Run it by hand: test_standin_training "[grid]".
TEST_CASE("training on the stand-in has the CPU's bits in every combination", "[.grid]") {
  const Models models;
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
