// Guards several adapters in one run over one base: samples, optimizer state, clipping,
// denominators or coefficients of one adapter that reach another, an adapter without samples that
// moves, ranks that train adapters in another order, a checkpoint that loses one of them. Oracle:
// runs of one adapter each, with the same rollouts, on one rank.
#include <ATen/ATen.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/io/adapter_directory.h"
#include "engine/io/hf_directory.h"
#include "engine/models/weight_export.h"
#include "rl/checkpoint/checkpoint_reader.h"
#include "rl/config/adapter_names.h"
#include "rl/config/load.h"
#include "rl/data/rollout_file.h"
#include "rl/rollouts/rollout_source.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/sharding.h"
#include "rl/trainer/checkpoint.h"
#include "rl/trainer/trainer.h"
#include "tests/support/catch.h"
#include "tests/support/laid_out.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/training_cases.h"

using namespace ringside;
namespace fs = std::filesystem;

namespace {

const fs::path kGoldens = fs::path(RINGSIDE_GOLDENS) / "regression";
constexpr int64_t kGroupSize = 4;
constexpr int64_t kSteps = 4;
const std::vector<std::string> kNames{"one", "two", "idle"};
// The adapter of each group, step by step. Adapters have different numbers of groups, "two" has
// none in the second step, and "idle" never has any.
const std::vector<std::vector<int64_t>> kPlan{{0, 1, 0}, {0, 0, 0}, {1, 1, 0}, {1, 0, 1}};

// Recorded groups, one after another and again, handed out by the plan. only: of this adapter
// alone, in the steps in which it has some; -1: of all, and the source knows whose each group is.
class PlannedSource final : public rl::RolloutSource {
 public:
  explicit PlannedSource(int64_t only) : only_(only) {
    const auto rollouts = rl::read_rollout_file(kGoldens / "plain.jsonl", kGroupSize);
    std::size_t next = 0;
    for (const std::vector<int64_t>& step : kPlan) {
      std::vector<bridge::Rollout> of_step;
      for (const int64_t adapter : step) {
        const auto group = static_cast<int64_t>(next / kGroupSize);
        for (int64_t i = 0; i < kGroupSize; ++i, ++next) {
          bridge::Rollout rollout = rollouts[next % rollouts.size()];
          rollout.group_id = group;
          rollout.group_size = kGroupSize;
          rollout.sample_index = static_cast<int32_t>(i);
          if (only == -1 || only == adapter) {
            of_step.push_back(std::move(rollout));
          }
        }
        adapter_of_.push_back(adapter);
      }
      if (!of_step.empty()) {
        steps_.push_back(std::move(of_step));
      }
    }
  }
  int64_t steps() const { return static_cast<int64_t>(steps_.size()); }

  engine::WeightSink weight_sink(int64_t, int64_t) override { return {}; }
  std::optional<std::vector<bridge::FlatRollout>> poll(int64_t step,
                                                       std::chrono::milliseconds) override {
    return rl::flatten_rollouts(steps_.at(static_cast<std::size_t>(step - 1)));
  }
  int64_t kind_of_group(int64_t group_id) override {
    return only_ == -1 ? adapter_of_.at(static_cast<std::size_t>(group_id)) : 0;
  }

 private:
  int64_t only_;
  std::vector<std::vector<bridge::Rollout>> steps_;
  std::vector<int64_t> adapter_of_;  // by group
};

// What a run needs beside its model: everything that has a state or a denominator of its own.
rl::Config make_config(const std::vector<std::string>& more, bool named) {
  std::vector<std::string> words{"model.path=" + (kGoldens / "policy").string(),
                                 "model.dtype=float64",
                                 "algorithm.preset=grpo",
                                 "algorithm.advantage.std=batch",
                                 "algorithm.kl_coef=0.05",
                                 "algorithm.kl_target=0.01",
                                 "algorithm.kl_horizon=20",
                                 "algorithm.num_iterations=2",
                                 "algorithm.loss_aggregation=token_mean",
                                 "rollout.group_size=4",
                                 "rollout.prompts_per_step=3",
                                 "rollout.max_completion_tokens=12",
                                 "optimizer.learning_rate=0.02",
                                 "optimizer.lr_schedule=linear",
                                 "optimizer.weight_decay=0.1",
                                 "optimizer.max_grad_norm=0.05",
                                 "train.steps=4",
                                 "train.num_mini_batches=2",
                                 "train.tokens_per_micro_batch=40",
                                 "eval.every=0",
                                 "checkpoint.every=2",
                                 "checkpoint.keep=0",
                                 "log.progress=lines",
                                 "lora.rank=3",
                                 "lora.alpha=6",
                                 "lora.publish=adapter"};
  words.insert(words.end(), more.begin(), more.end());
  if (named) {
    words.emplace_back("lora.adapters=one, two, idle");
    words.push_back("data.train=" + (kGoldens / "plain.jsonl").string());
  }
  return rl::load_config_or_throw({}, words);
}

// Trains until `steps` are done, from what `dir` holds. only: as of PlannedSource.
void train(const rl::Config& config, const fs::path& dir, int64_t steps, int64_t only,
           const sp::MeshShape& shape = {}) {
  const rl::Config own = test::laid_out(config, shape);
  const auto body = [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    rl::TrainingRun run({own, dir, steps, {}}, mesh, comms);
    const auto source = run.ranks().is_main() ? std::make_unique<PlannedSource>(only) : nullptr;
    rl::train_rl(run, source.get());
  };
  std::vector<sp::Axes> axes = rl::sharding_axes(own.parallel);
  std::ranges::copy(test::fully_sharded_axes(), std::back_inserter(axes));
  test::run_ranks_in_memory(shape, body, axes);
}

// The checkpoint after the last step of a run of one adapter.
struct Alone {
  explicit Alone(const rl::Config& config, int64_t adapter) {
    const int64_t steps = PlannedSource(adapter).steps();
    train(config, dir.path(), steps, adapter);
    checkpoint.emplace(rl::checkpoint_path(dir.path(), steps));
  }
  test::TemporaryDirectory dir;
  std::optional<rl::CheckpointReader> checkpoint;
};

using Runs = std::vector<std::unique_ptr<Alone>>;

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// The tensors of one adapter, moments included, are those of its own run. Returns their number.
int64_t check_as_alone(const rl::CheckpointReader& found, const std::string& name,
                       const rl::CheckpointReader& alone) {
  const std::string prefix = "policy/";
  int64_t compared = 0;
  for (const auto& [tensor, stored] : alone.tensors()) {
    CAPTURE(name, tensor);
    const std::string of_name = prefix + name + "/" + tensor.substr(prefix.size());
    CHECK(difference(found.tensor(of_name), alone.tensor(tensor)) < 1e-10);
    ++compared;
  }
  CHECK(found.manifest().optimizer_steps.at(prefix + name) ==
        alone.manifest().optimizer_steps.at("policy"));
  return compared;
}

const rl::TrainingState& state_of(const rl::CheckpointReader& checkpoint, std::size_t adapter) {
  return checkpoint.manifest().state.adapters.at(adapter);
}

// An adapter that had no sample is as the configuration draws it, to the bit, and has taken no
// step.
void check_idle(const rl::CheckpointReader& found, const rl::Config& config) {
  CHECK(found.manifest().optimizer_steps.at("policy/idle") == 0);
  const engine::ModelConfig model = rl::load_model_config(config, config.model.path);
  engine::Adapters start(model, engine::whole_stage(model), rl::adapter_options(config.lora),
                         engine::ComputeContext(at::kDouble));
  start.init_random(static_cast<uint64_t>(config.seed));
  for (std::size_t i = 0; i < start.unit().specs().size(); ++i) {
    const std::string& name = start.unit().specs()[i].name;
    CAPTURE(name);
    CHECK(at::equal(found.tensor("policy/idle/" + name), start.unit().view(i)));
    CHECK(found.tensor("policy/idle/exp_avg." + name).eq(0).all().item<bool>());
    CHECK(found.tensor("policy/idle/exp_avg_sq." + name).eq(0).all().item<bool>());
  }
}

// Trains all adapters at the layout and compares them with their own runs.
void check_layout(const rl::Config& config, const Runs& alone, const sp::MeshShape& shape) {
  CAPTURE(shape.dp_replicate, shape.dp_shard, shape.ring, shape.ulysses, shape.tensor, shape.expert,
          shape.pipeline);
  const test::TemporaryDirectory dir;
  train(config, dir.path(), kSteps, -1, shape);
  const rl::CheckpointReader found(rl::checkpoint_path(dir.path(), kSteps));
  for (std::size_t i = 0; i < alone.size(); ++i) {
    const rl::CheckpointReader& own = *alone[i]->checkpoint;
    CHECK(check_as_alone(found, kNames[i], own) > 20);
    CHECK(state_of(found, i).kl_coef == Approx(own.manifest().state.kl_coef).epsilon(1e-9));
    CHECK(state_of(found, i).kl_coef != config.algorithm.kl_coef);
    CHECK(state_of(found, i).optimizer_step == own.manifest().state.optimizer_step);
  }
  check_idle(found, config);
}

Runs runs_of_one(const std::vector<std::string>& words) {
  Runs alone;
  for (int64_t adapter = 0; adapter < 2; ++adapter) {
    alone.push_back(std::make_unique<Alone>(make_config(words, /*named=*/false), adapter));
  }
  return alone;
}

}  // namespace

TEST_CASE("each of several adapters gets the updates of a run of its own, at every layout") {
  at::set_num_threads(1);
  const auto alone = runs_of_one({});
  const auto difference_of_two =
      alone[0]->checkpoint->tensor(
          "policy/base_model.model.model.layers.0.mlp.up_proj.lora_B.weight") -
      alone[1]->checkpoint->tensor(
          "policy/base_model.model.model.layers.0.mlp.up_proj.lora_B.weight");
  CHECK(difference_of_two.abs().max().item<double>() > 1e-4);
  const auto config = make_config({}, /*named=*/true);
  for (const sp::MeshShape& shape : std::vector<sp::MeshShape>{{},
                                                               {.dp_replicate = 3},
                                                               {.dp_shard = 2},
                                                               {.ring = 2},
                                                               {.ulysses = 2},
                                                               {.tensor = 2},
                                                               {.pipeline = 2}}) {
    check_layout(config, alone, shape);
  }
}

TEST_CASE("adapters beside experts learn apart on ranks that divide the experts") {
  at::set_num_threads(1);
  const test::Models models(nlohmann::json::parse(std::ifstream(kGoldens / "policy/config.json")));
  std::vector<std::string> words = models.part("qwen3_moe").words;
  words.emplace_back("lora.target_modules=q_proj,v_proj,o_proj");
  const auto alone = runs_of_one(words);
  const auto config = make_config(words, /*named=*/true);
  for (const sp::MeshShape& shape :
       std::vector<sp::MeshShape>{{.ulysses = 2, .expert = 2}, {.dp_shard = 2, .expert = 2}}) {
    check_layout(config, alone, shape);
  }
}

TEST_CASE("a run of several adapters that was stopped goes on as if it had not been") {
  at::set_num_threads(1);
  const auto config = make_config({}, /*named=*/true);
  const test::TemporaryDirectory whole, stopped;
  train(config, whole.path(), kSteps, -1);
  train(config, stopped.path(), 2, -1);
  const rl::CheckpointReader expected(rl::checkpoint_path(whole.path(), kSteps));
  for (const sp::MeshShape& shape :
       std::vector<sp::MeshShape>{{}, {.dp_shard = 2}, {.tensor = 2}}) {
    const test::TemporaryDirectory resumed;
    fs::copy(stopped.path(), resumed.path(), fs::copy_options::recursive);
    train(config, resumed.path(), kSteps, -1, shape);
    const rl::CheckpointReader found(rl::checkpoint_path(resumed.path(), kSteps));
    REQUIRE(found.tensors().size() == expected.tensors().size());
    for (const auto& [name, stored] : expected.tensors()) {
      CAPTURE(name, shape.dp_shard);
      const double most = difference(found.tensor(name), expected.tensor(name));
      CHECK(most <= (shape.world_size() == 1 ? 0.0 : 1e-10));
    }
    for (std::size_t i = 0; i < kNames.size(); ++i) {
      CHECK(state_of(found, i).kl_coef == Approx(state_of(expected, i).kl_coef).epsilon(1e-12));
    }
  }
  auto other = config;
  other.lora.adapters = "one, two";
  CHECK_THROWS_WITH(train(other, stopped.path(), kSteps, -1),
                    Catch::Contains("3 adapters with a name") && Catch::Contains("names 2"));
}

TEST_CASE("a run of several adapters leaves a PEFT directory for each and starts from them") {
  at::set_num_threads(1);
  auto config = make_config({}, /*named=*/true);
  const test::TemporaryDirectory dir, again;
  train(config, dir.path(), kSteps, -1, {.dp_shard = 2});
  const fs::path final_dir = rl::final_directory(dir.path());
  CHECK_FALSE(fs::exists(final_dir / "model.safetensors"));
  CHECK(rl::final_step(dir.path()) == kSteps);
  const rl::CheckpointReader last(rl::checkpoint_path(dir.path(), kSteps));
  const auto config_of_model = engine::load_model_config(kGoldens / "policy");
  for (const std::string& name : kNames) {
    engine::Adapters adapters(config_of_model, engine::whole_stage(config_of_model),
                              engine::read_adapter_options(final_dir / "adapter" / name),
                              engine::ComputeContext(at::kDouble));
    engine::load_adapters(final_dir / "adapter" / name, adapters);
    for (std::size_t i = 0; i < adapters.unit().specs().size(); ++i) {
      const std::string& tensor = adapters.unit().specs()[i].name;
      CHECK(difference(adapters.unit().view(i), last.tensor("policy/" + name + "/" + tensor)) <
            1e-6);
    }
  }
  config.lora.path = (final_dir / "adapter").string();
  train(config, again.path(), 0, -1);
  CHECK(
      test::bytes_of(rl::final_directory(again.path()) / "adapter/two/adapter_model.safetensors") ==
      test::bytes_of(final_dir / "adapter/two/adapter_model.safetensors"));
}

TEST_CASE("a step has metrics of its whole and of each adapter, which are those of its own run") {
  at::set_num_threads(1);
  const test::TemporaryDirectory dir, own;
  train(make_config({}, /*named=*/true), dir.path(), kSteps, -1);
  train(make_config({}, /*named=*/false), own.path(), PlannedSource(0).steps(), 0);
  const auto steps = test::metrics_of(dir.path());
  const auto alone = test::metrics_of(own.path());
  REQUIRE(steps.size() == kSteps);
  for (const char* figure : {"reward", "loss", "grad_norm", "kl", "learning_rate",
                             "completions/mean_length", "actor/kl_coef"}) {
    CAPTURE(figure);
    for (std::size_t step = 0; step < steps.size(); ++step) {
      CHECK(steps[step].at(std::string("adapter/one/") + figure).get<double>() ==
            Approx(alone.at(step).at(figure).get<double>()).epsilon(1e-9));
    }
    CHECK_FALSE(steps[1].contains(std::string("adapter/two/") + figure));
    CHECK_FALSE(steps[0].contains(std::string("adapter/idle/") + figure));
  }
  // Two groups of three in the first step are of "one".
  CHECK(steps[0]["reward"].get<double>() ==
        Approx((2 * steps[0]["adapter/one/reward"].get<double>() +
                steps[0]["adapter/two/reward"].get<double>()) /
               3));
}
