// Guards: something that a run learns or adapts and a checkpoint forgets: the critic, a reference
// that follows the policy, adaptive coefficients. Oracle: the same run without the stop, to the
// bit. And the log of what a run trained on.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/io/hf_directory.h"
#include "rl/checkpoint/checkpoint_reader.h"
#include "rl/config/load.h"
#include "rl/rollouts/rollout_source.h"
#include "rl/setup/sharding.h"
#include "rl/trainer/checkpoint.h"
#include "rl/trainer/trainer.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;
namespace fs = std::filesystem;

namespace {

const fs::path kGoldens = fs::path(RINGSIDE_GOLDENS) / "regression";

rl::Config make_config(const std::vector<std::string>& words) {
  std::vector<std::string> all{"model.path=" + (kGoldens / "policy").string(),
                               "model.reference_path=" + (kGoldens / "reference").string(),
                               "algorithm.critic.model_path=" + (kGoldens / "critic").string(),
                               "model.dtype=float64",
                               "rollout.group_size=4",
                               "rollout.prompts_per_step=2",
                               "rollout.max_completion_tokens=12",
                               "optimizer.learning_rate=0.01",
                               "optimizer.lr_schedule=linear",
                               "train.steps=7",
                               "checkpoint.every=2",
                               "log.progress=lines"};
  all.insert(all.end(), words.begin(), words.end());
  return rl::load_config_or_throw({}, all);
}

// Trains until `steps` are done, going on from what `dir` holds.
rl::TrainingState train(const rl::Config& config, const fs::path& dir, int64_t steps,
                        sp::MeshShape shape = {1, 1, 1}) {
  rl::TrainingState state;
  const auto body = [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    rl::TrainingRun run({config, dir, steps, {}}, mesh, comms);
    const auto source =
        run.is_main_rank() ? rl::make_file_source(kGoldens / "plain.jsonl", config) : nullptr;
    rl::train_rl(run, source.get());
    if (run.is_main_rank()) {
      state = run.state();
    }
  };
  std::vector<sp::Axes> axes = rl::sharding_axes(config.parallel);
  std::ranges::copy(test::fully_sharded_axes(), std::back_inserter(axes));
  test::run_ranks(shape, body, std::chrono::seconds(30), axes);
  return state;
}

// With a critic, and with a reference that moves; both with adaptive coefficients.
const std::vector<std::string> kWithCritic{"algorithm.preset=ppo", "algorithm.kl_target=0.05",
                                           "algorithm.kl_horizon=20", "rollout.group_size=4",
                                           "algorithm.critic.warmup_steps=1"};
const std::vector<std::string> kWithReference{
    "algorithm.preset=grpo",         "algorithm.reference_update_every=1",
    "algorithm.reference_mixup=0.5", "algorithm.entropy_target=2",
    "algorithm.entropy_step=0.01",   "algorithm.kl_target=0.05",
    "algorithm.kl_horizon=20"};

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE(
    "a run that was stopped goes on as if it had not been, critic, reference and coefficients "
    "included") {
  const auto words = GENERATE(kWithCritic, kWithReference);
  CAPTURE(words[0]);
  const auto config = make_config(words);
  const test::TemporaryDirectory whole, stopped;
  const auto expected = train(config, whole.path(), 4);
  train(config, stopped.path(), 2);
  const auto state = train(config, stopped.path(), 4);
  CHECK(state.step == 4);
  CHECK(state.kl_coef == expected.kl_coef);
  CHECK(state.kl_coef != config.algorithm.kl_coef);
  CHECK(state.entropy_coef == expected.entropy_coef);
  CHECK(state.entropy == expected.entropy);
  int compared = 0;
  for (const auto& entry : fs::recursive_directory_iterator(whole.path())) {
    if (entry.path().extension() == ".safetensors") {
      const auto file = fs::relative(entry.path(), whole.path());
      CAPTURE(file.string());
      CHECK(bytes_of(entry.path()) == bytes_of(stopped.path() / file));
      ++compared;
    }
  }
  CHECK(compared >= 3);  // the checkpoints of steps 2 and 4, and the final weights
}

// Guards: a checkpoint that another layout of ranks reads in another order or in part. Oracle: the
// run without the stop.
TEST_CASE("a run goes on at any layout of ranks from a checkpoint of any other") {
  const auto words = GENERATE(kWithCritic, kWithReference);
  CAPTURE(words[0]);
  const auto config = make_config(words);
  const sp::MeshShape saved{2, 1, 2};
  const test::TemporaryDirectory whole, stopped;
  train(config, whole.path(), 7, saved);
  train(config, stopped.path(), 2, saved);
  const rl::CheckpointReader expected(rl::checkpoint_path(whole.path(), 7));
  CHECK(expected.manifest().parts.size() == 4);
  for (const sp::MeshShape& shape :
       std::vector<sp::MeshShape>{{2, 1, 2}, {1, 2, 2}, {4, 1, 1}, {1, 1, 1}, {1, 3, 1}}) {
    CAPTURE(shape.dp_replicate, shape.ring, shape.ulysses);
    const test::TemporaryDirectory resumed;
    fs::copy(stopped.path(), resumed.path(), fs::copy_options::recursive);
    train(config, resumed.path(), 7, shape);
    const rl::CheckpointReader found(rl::checkpoint_path(resumed.path(), 7));
    REQUIRE(found.tensors().size() == expected.tensors().size());
    const bool same_layout = shape.dp_replicate == 2 && shape.ulysses == 2;
    for (const auto& [name, stored] : expected.tensors()) {
      CAPTURE(name);
      const at::Tensor difference = (found.tensor(name) - expected.tensor(name)).abs();
      CHECK(difference.max().item<double>() <= (same_layout ? 0.0 : 1e-10));
    }
  }
}

// The configuration of a mesh, sharded over all ranks of a replica.
rl::Config laid_out(rl::Config config, const sp::MeshShape& shape,
                    rl::OptimizerOffload offload = rl::OptimizerOffload::kNone) {
  config.parallel.data_parallel_replicate_size = shape.dp_replicate;
  config.parallel.data_parallel_shard_size = shape.dp_shard;
  config.parallel.ringattn_parallel_size = shape.ring;
  config.parallel.ulysses_parallel_size = shape.ulysses;
  config.parallel.expert_parallel_size = shape.expert;
  config.optimizer.offload = offload;
  return config;
}

// Guards: shards that are saved or read in another order or in part; moments of a host left behind.
// Oracle: the run without the stop.
TEST_CASE("a sharded run goes on at any layout of shards, and from host memory") {
  const auto words = GENERATE(kWithCritic, kWithReference);
  CAPTURE(words[0]);
  const auto config = make_config(words);
  const sp::MeshShape saved{.ulysses = 2, .dp_shard = 2};
  const test::TemporaryDirectory whole, stopped;
  train(laid_out(config, saved), whole.path(), 7, saved);
  train(laid_out(config, saved), stopped.path(), 2, saved);
  const rl::CheckpointReader expected(rl::checkpoint_path(whole.path(), 7));
  CHECK(expected.manifest().parts.size() == 4);
  using Offload = rl::OptimizerOffload;
  const std::vector<std::pair<sp::MeshShape, Offload>> layouts{
      {saved, Offload::kNone},
      {saved, Offload::kMoments},
      {{.ring = 2, .ulysses = 2}, Offload::kNone},
      {{.dp_shard = 4}, Offload::kNone},
      {{}, Offload::kNone},
      {{.dp_shard = 3}, Offload::kFull},
      {{.dp_replicate = 2, .dp_shard = 2}, Offload::kMoments}};
  for (const auto& [shape, offload] : layouts) {
    CAPTURE(shape.dp_replicate, shape.dp_shard, shape.ring, shape.ulysses, offload);
    const test::TemporaryDirectory resumed;
    fs::copy(stopped.path(), resumed.path(), fs::copy_options::recursive);
    train(laid_out(config, shape, offload), resumed.path(), 7, shape);
    const rl::CheckpointReader found(rl::checkpoint_path(resumed.path(), 7));
    REQUIRE(found.tensors().size() == expected.tensors().size());
    const bool same_layout = shape.dp_shard == 2 && shape.ulysses == 2;
    for (const auto& [name, stored] : expected.tensors()) {
      CAPTURE(name);
      const at::Tensor difference = (found.tensor(name) - expected.tensor(name)).abs();
      CHECK(difference.max().item<double>() <= (same_layout ? 0.0 : 1e-10));
    }
  }
}

// Guards: experts of one rank that a checkpoint, an export or another layout takes for those of
// another; names that depend on the layout. Oracle: the run without the stop.
TEST_CASE("a run with experts goes on with any number of ranks that hold them") {
  const test::TemporaryDirectory model, whole;
  auto shape_json = nlohmann::json::parse(std::ifstream(kGoldens / "policy/config.json"));
  shape_json.update({{"model_type", "qwen3_moe"},
                     {"num_experts", 5},
                     {"num_experts_per_tok", 2},
                     {"moe_intermediate_size", 12},
                     {"norm_topk_prob", true}});
  std::ofstream(model.path() / "config.json") << shape_json;
  rl::Config config = make_config({"model.path=" + model.path().string(), "model.init=random",
                                   "model.reference_path=", "train.steps=4"});
  train(config, whole.path(), 4);
  const rl::CheckpointReader expected(rl::checkpoint_path(whole.path(), 4));
  const std::string name = "model.layers.0.mlp.experts.4.gate_proj.weight";
  CHECK(expected.tensor("policy/" + name).sizes() ==
        at::IntArrayRef{12, shape_json["hidden_size"]});
  const std::vector<sp::MeshShape> shapes{{.ulysses = 2, .expert = 2},
                                          {.ulysses = 2, .dp_shard = 2, .expert = 4},
                                          {.dp_replicate = 2, .dp_shard = 2, .expert = 2}};
  for (const sp::MeshShape& shape : shapes) {
    CAPTURE(shape.dp_replicate, shape.dp_shard, shape.ulysses, shape.expert);
    for (const bool saves_spread : {true, false}) {
      const test::TemporaryDirectory run;
      const sp::MeshShape alone{};
      const sp::MeshShape &before = saves_spread ? shape : alone,
                          &after = saves_spread ? alone : shape;
      train(laid_out(config, before), run.path(), 2, before);
      train(laid_out(config, after), run.path(), 4, after);
      const rl::CheckpointReader found(rl::checkpoint_path(run.path(), 4));
      REQUIRE(found.tensors().size() == expected.tensors().size());
      for (const auto& [tensor, stored] : expected.tensors()) {
        CAPTURE(tensor);
        const at::Tensor difference = (found.tensor(tensor) - expected.tensor(tensor)).abs();
        CHECK(difference.max().item<double>() <= 1e-10);
      }
      const engine::Decoder last =
          engine::load_decoder(rl::final_directory(run.path()), at::kDouble);
      for (const engine::ParamUnit* unit : last.units()) {
        for (std::size_t i = 0; i < unit->specs().size(); ++i) {
          const at::Tensor stored = found.tensor("policy/" + unit->specs()[i].name);
          CHECK((unit->view(i) - stored).abs().max().item<double>() < 1e-6);
        }
      }
    }
  }
}

// Guards: advantages that are not those of the step or stand in another rollout's line. Oracle: the
// group's rewards, with the definition written out.
TEST_CASE("the log of a run holds the advantages that each step trained on") {
  const auto config = make_config({"log.rollouts=true"});
  const test::TemporaryDirectory dir;
  train(config, dir.path(), 2);
  std::ifstream file(dir.path() / "rollouts.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  const std::size_t group_size = 4;
  REQUIRE(lines.size() == 2 * 2 * group_size);
  int compared = 0;
  for (std::size_t r = 0; r < lines.size(); ++r) {
    const auto reward = [&](std::size_t i) {
      return lines[r - r % group_size + i].at("rewards").at(0).at(1).get<double>();
    };
    double mean = 0, squares = 0;
    for (std::size_t i = 0; i < group_size; ++i)
      mean += reward(i) / static_cast<double>(group_size);
    for (std::size_t i = 0; i < group_size; ++i) squares += (reward(i) - mean) * (reward(i) - mean);
    const double expected =
        (reward(r % group_size) - mean) / (std::sqrt(squares / (group_size - 1)) + 1e-4);
    const nlohmann::json& advantages = lines[r].at("advantages");
    REQUIRE(advantages.size() == lines[r].at("completion_ids").size());
    for (const nlohmann::json& advantage : advantages) {
      if (advantage.is_null()) continue;
      CHECK(advantage.get<double>() == Approx(expected).margin(1e-12));
      compared += expected != 0 ? 1 : 0;
    }
  }
  CHECK(compared > 20);
}

// Guards: log-probs of samples that differ on another layout, or both passes before or both after
// the update. Oracle: one rank.
TEST_CASE("samples of a step have the log-probs before and after its update, on every layout") {
  std::vector<std::vector<nlohmann::json>> runs;
  for (const sp::MeshShape shape : {sp::MeshShape{1, 1, 1}, sp::MeshShape{1, 2, 2}}) {
    const test::TemporaryDirectory dir;
    train(make_config({"log.samples=3", "train.num_mini_batches=2"}), dir.path(), 2, shape);
    std::ifstream file(dir.path() / "samples.jsonl");
    auto& lines = runs.emplace_back();
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    REQUIRE(lines.size() == 2 * 3);
  }
  double moved = 0.0;
  for (std::size_t i = 0; i < 6; ++i) {
    const nlohmann::json& line = runs[0][i];
    CAPTURE(i, line.at("step"));
    CHECK(line.at("step") == 1 + i / 3);
    CHECK(line.at("reward") == runs[1][i].at("reward"));
    if (!line.contains("advantages")) continue;
    for (std::size_t t = 0; t < line.at("tokens").size(); ++t) {
      if (line.at("advantages")[t].is_null()) continue;
      for (const char* name : {"old_logprobs", "new_logprobs"}) {
        CHECK(line.at(name)[t].get<double>() ==
              Approx(runs[1][i].at(name)[t].get<double>()).margin(1e-9));
      }
      const double before = line.at("old_logprobs")[t];
      moved = std::max(moved, std::abs(line.at("new_logprobs")[t].get<double>() - before));
    }
  }
  CHECK(moved > 1e-4);
}

// Guards: a start that finds no checkpoint yet takes itself for another run and refuses the journal
// of the one before.
TEST_CASE("a run keeps its id over a start without a checkpoint, and other runs have others") {
  const auto config = make_config({});
  const auto id_of = [&](const fs::path& dir) {
    std::string id;
    test::run_ranks({1, 1, 1}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
      id = rl::TrainingRun({config, dir, 4, {}}, mesh, comms).state().run_id;
    });
    return id;
  };
  const test::TemporaryDirectory one, other;
  const std::string first = id_of(one.path());
  CHECK(id_of(one.path()) == first);
  CHECK(id_of(other.path()) != first);
  CHECK(train(config, one.path(), 2).run_id == first);
  fs::remove(one.path() / "run_id");
  CHECK(id_of(one.path()) == first);  // out of the checkpoint
}
