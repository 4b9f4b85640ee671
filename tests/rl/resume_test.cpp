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
#include "tests/support/hybrid_fields.h"
#include "tests/support/laid_out.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;
namespace fs = std::filesystem;

namespace {

const fs::path kGoldens = fs::path(RINGSIDE_GOLDENS) / "regression";

rl::Config make_config(const std::vector<std::string>& words) {
  std::vector<std::string> all{"model.path=" + (kGoldens / "policy").string(),
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
  rl::Config config = rl::load_config_or_throw({}, all);
  if (config.model.init == rl::ModelInit::kPretrained) {
    config.model.reference_path = (kGoldens / "reference").string();
    config.algorithm.critic.model_path = (kGoldens / "critic").string();
  }
  return config;
}

// Trains until `steps` are done, going on from what `dir` holds.
rl::TrainingState train(const rl::Config& config, const fs::path& dir, int64_t steps,
                        sp::MeshShape shape = {1, 1, 1}) {
  rl::TrainingState state;
  const auto body = [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    rl::TrainingRun run({config, dir, steps, {}}, mesh, comms);
    const auto source =
        run.ranks().is_main() ? rl::make_file_source(kGoldens / "plain.jsonl", config) : nullptr;
    rl::train_rl(run, source.get());
    if (run.ranks().is_main()) {
      state = run.state();
    }
  };
  std::vector<sp::Axes> axes = rl::sharding_axes(config.parallel);
  std::ranges::copy(test::fully_sharded_axes(), std::back_inserter(axes));
  test::run_ranks_in_memory(shape, body, axes);
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

// On a mesh, with the optimizer's state where `offload` says.
rl::Config laid_out(const rl::Config& config, const sp::MeshShape& shape,
                    rl::OptimizerOffload offload = rl::OptimizerOffload::kNone) {
  rl::Config own = test::laid_out(config, shape);
  own.optimizer.offload = offload;
  return own;
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
      {{.dp_shard = 2, .pipeline = 2}, Offload::kNone},
      {{.ulysses = 2, .pipeline = 2}, Offload::kFull},
      {{.pipeline = 2, .tensor = 2}, Offload::kNone},
      {{.dp_shard = 3}, Offload::kFull},
      {{.dp_replicate = 2, .dp_shard = 2}, Offload::kMoments}};
  for (const auto& [shape, offload] : layouts) {
    CAPTURE(shape.dp_replicate, shape.dp_shard, shape.ring, shape.ulysses, shape.pipeline,
            shape.tensor, offload);
    const test::TemporaryDirectory resumed;
    fs::copy(stopped.path(), resumed.path(), fs::copy_options::recursive);
    train(laid_out(config, shape, offload), resumed.path(), 7, shape);
    const rl::CheckpointReader found(rl::checkpoint_path(resumed.path(), 7));
    REQUIRE(found.tensors().size() == expected.tensors().size());
    const bool same_layout = shape.dp_shard == 2 && shape.ulysses == 2 && shape.pipeline == 1;
    for (const auto& [name, stored] : expected.tensors()) {
      CAPTURE(name);
      const at::Tensor difference = (found.tensor(name) - expected.tensor(name)).abs();
      CHECK(difference.max().item<double>() <= (same_layout ? 0.0 : 1e-10));
    }
  }
}

// A recipe of 4 steps for a model with random weights: the golden policy's shape and `changes`.
rl::Config with_model(const test::TemporaryDirectory& model, const nlohmann::json& changes,
                      const std::vector<std::string>& more = {}) {
  auto shape_json = nlohmann::json::parse(std::ifstream(kGoldens / "policy/config.json"));
  for (const char* key :
       {"layer_types", "max_window_layers", "sliding_window", "use_sliding_window"}) {
    shape_json.erase(key);
  }
  shape_json.update(changes);
  std::ofstream(model.path() / "config.json") << shape_json;
  std::vector<std::string> words{"model.path=" + model.path().string(), "model.init=random",
                                 "train.steps=4",
                                 // One micro-batch at every layout: the auxiliary loss is over one.
                                 "train.tokens_per_micro_batch=4096"};
  words.insert(words.end(), more.begin(), more.end());
  return make_config(words);
}

// Two steps at one layout and the rest at another, one of which is a single rank. `expected` is the
// checkpoint of a run without the stop. The final directory holds the last checkpoint's weights.
void check_goes_on(const rl::Config& config, const rl::CheckpointReader& expected,
                   const sp::MeshShape& shape, bool saves_spread) {
  const test::TemporaryDirectory run;
  const sp::MeshShape alone{};
  const sp::MeshShape &before = saves_spread ? shape : alone, &after = saves_spread ? alone : shape;
  train(laid_out(config, before), run.path(), 2, before);
  train(laid_out(config, after), run.path(), config.train.steps, after);
  const rl::CheckpointReader found(rl::checkpoint_path(run.path(), config.train.steps));
  REQUIRE(found.tensors().size() == expected.tensors().size());
  for (const auto& [tensor, stored] : expected.tensors()) {
    CAPTURE(tensor);
    const at::Tensor difference = (found.tensor(tensor) - expected.tensor(tensor)).abs();
    CHECK(difference.max().item<double>() <= 1e-10);
  }
  const engine::Decoder last = engine::load_decoder(rl::final_directory(run.path()), at::kDouble);
  for (const engine::ParamUnit* unit : last.units()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      const at::Tensor stored = found.tensor("policy/" + unit->specs()[i].name);
      CHECK((unit->view(i) - stored).abs().max().item<double>() < 1e-6);
    }
  }
}

// What a model with experts changes, a parameter of the last expert and its shape.
struct ExpertModel {
  nlohmann::json changes;
  std::string parameter;
  std::vector<int64_t> shape;
  std::vector<std::string> words = {};  // of its training
};

// Five experts under the family's key.
nlohmann::json five_experts(const char* key) {
  return {{key, 5},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 12},
          {"norm_topk_prob", true}};
}

// Experts with tensors of their own, stacked ones, and a router with a correction that moves.
ExpertModel expert_model(const std::string& type) {
  const auto golden = nlohmann::json::parse(std::ifstream(kGoldens / "policy/config.json"));
  const int64_t hidden = golden["hidden_size"];
  if (type == "gpt_oss") {
    return {{{"model_type", type},
             {"num_experts_per_tok", 2},
             {"num_local_experts", 5},
             {"intermediate_size", 12},
             {"sliding_window", 8},
             {"layer_types", {"sliding_attention", "full_attention"}}},
            "model.layers.0.mlp.experts.gate_up_proj",
            {5, hidden, 24}};
  }
  nlohmann::json changes = five_experts(type == "qwen3_moe" ? "num_experts" : "n_routed_experts");
  changes["model_type"] = type;
  if (type == "qwen3_moe") {
    return {changes, "model.layers.0.mlp.experts.4.gate_proj.weight", {12, hidden}};
  }
  changes.update({{"num_key_value_heads", golden["num_attention_heads"]},
                  {"kv_lora_rank", 10},
                  {"q_lora_rank", 12},
                  {"qk_nope_head_dim", 8},
                  {"qk_rope_head_dim", 4},
                  {"v_head_dim", 6},
                  {"n_shared_experts", 1},
                  {"n_group", 1},
                  {"topk_group", 1},
                  {"routed_scaling_factor", 1.5},
                  {"first_k_dense_replace", 1}});
  return {changes,
          "model.layers.1.mlp.experts.4.gate_proj.weight",
          {12, hidden},
          {"model.router_bias_update_rate=0.001", "model.router_aux_loss_coef=0.1"}};
}

// Guards: experts of one rank that a checkpoint, an export or another layout takes for those of
// another; names that depend on the layout. Oracle: the run without the stop.
TEST_CASE("a run with experts goes on with any number of ranks that hold them") {
  const std::string type = GENERATE("qwen3_moe", "gpt_oss", "deepseek_v3");
  CAPTURE(type);
  const ExpertModel expert = expert_model(type);
  const test::TemporaryDirectory model, whole;
  const rl::Config config = with_model(model, expert.changes, expert.words);
  train(config, whole.path(), 4);
  const rl::CheckpointReader expected(rl::checkpoint_path(whole.path(), 4));
  CHECK(expected.tensor("policy/" + expert.parameter).sizes() == at::IntArrayRef(expert.shape));
  if (type == "deepseek_v3") {  // moved by each of four steps, from 0
    const at::Tensor moved =
        expected.tensor("policy/model.layers.1.mlp.gate.e_score_correction_bias").abs();
    CHECK(moved.max().item<double>() > 0.0015);
    CHECK(moved.max().item<double>() < 0.00401);
  }
  std::vector<sp::MeshShape> shapes{{.ulysses = 2, .expert = 2},
                                    {.ulysses = 2, .dp_shard = 2, .expert = 4},
                                    {.dp_replicate = 2, .dp_shard = 2, .expert = 2}};
  if (type != "deepseek_v3") {  // whose recipe has a load-balancing loss over all layers
    shapes.push_back({.ulysses = 2, .expert = 2, .pipeline = 2});
    shapes.push_back({.expert = 2, .pipeline = 2, .tensor = 2});
  }
  for (const sp::MeshShape& shape : shapes) {
    CAPTURE(shape.dp_replicate, shape.dp_shard, shape.ulysses, shape.expert, shape.pipeline,
            shape.tensor);
    check_goes_on(config, expected, shape, /*saves_spread=*/true);
    check_goes_on(config, expected, shape, /*saves_spread=*/false);
  }
}

// Guards: passes whose samples or order depend on the ranks or on a restart; columns of which a
// rank has its own tokens alone. Oracle: one rank that is not stopped.
TEST_CASE("passes with samples of their own are the same at any layout and after a stop") {
  const std::vector<std::vector<std::string>> cases{
      {"train.num_mini_batches=2", "train.shuffle_mini_batches=true", "algorithm.num_iterations=2",
       "algorithm.kl_coef=0.1", "rollout.reward=length"},
      {"train.num_mini_batches=2", "algorithm.resampling.method=pow", "rollout.reward=length",
       "algorithm.loss_aggregation=seq_mean_token_mean", "algorithm.kl_coef=0.1",
       "algorithm.correction.reject=[{by: token_k2, high: 0.001}]",
       "algorithm.correction.drop_rejected=true"},
      {"algorithm.preset=ppo", "rollout.group_size=4", "train.num_mini_batches=2",
       "train.shuffle_mini_batches=true", "algorithm.critic.num_iterations=2",
       "algorithm.critic.num_mini_batches=3"},
      {"algorithm.advantage.estimator=optimal_token_baseline", "algorithm.correction.mode=tis"}};
  for (const auto& words : cases) {
    CAPTURE(words);
    auto config = make_config(words);
    config.train.steps = 4;
    const test::TemporaryDirectory whole;
    train(config, whole.path(), 4);
    const rl::CheckpointReader expected(rl::checkpoint_path(whole.path(), 4));
    check_goes_on(config, expected, {.dp_replicate = 2, .ring = 2}, /*saves_spread=*/true);
    check_goes_on(config, expected, {.ulysses = 2, .pipeline = 2}, /*saves_spread=*/false);
  }
}

// Guards: parameters of a delta net that another layout reads in another order; states that depend
// on where a run was stopped. Oracle: the run without the stop.
TEST_CASE("a run of a hybrid model goes on at another layout") {
  const test::TemporaryDirectory model, whole;
  nlohmann::json changes = five_experts("num_experts");
  changes.update(test::hybrid_fields());
  rl::Config config = with_model(model, changes);
  config.sp.placement = sp::Placement::kZigzag;
  config.train.steps = 5;
  train(config, whole.path(), 5);
  const rl::CheckpointReader expected(rl::checkpoint_path(whole.path(), 5));
  CHECK(expected.tensor("policy/model.layers.0.linear_attn.A_log").sizes() == at::IntArrayRef{4});
  check_goes_on(config, expected, {.ring = 2, .ulysses = 2, .expert = 4}, /*saves_spread=*/true);
  check_goes_on(config, expected, {.ring = 2, .expert = 2}, /*saves_spread=*/false);
  check_goes_on(config, expected, {.ulysses = 2, .dp_shard = 2}, /*saves_spread=*/true);
}

// Guards: advantages that are not those of the step or stand in another rollout's line. Oracle: the
// group's rewards, with the definition written out.
TEST_CASE("the log of a run holds the advantages that each step trained on") {
  const auto config = make_config({"log.rollouts=true"});
  const test::TemporaryDirectory dir;
  train(config, dir.path(), 2);
  std::ifstream file(dir.path() / "rollouts.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  const std::size_t group_size = 4;
  REQUIRE(lines.size() == 2 * 2 * group_size);
  int compared = 0;
  for (std::size_t r = 0; r < lines.size(); ++r) {
    const auto reward = [&](std::size_t i) {
      return lines[r - r % group_size + i].at("rewards").at(0).at(1).get<double>();
    };
    double mean = 0, squares = 0;
    for (std::size_t i = 0; i < group_size; ++i) {
      mean += reward(i) / static_cast<double>(group_size);
    }
    for (std::size_t i = 0; i < group_size; ++i) {
      squares += (reward(i) - mean) * (reward(i) - mean);
    }
    const double expected =
        (reward(r % group_size) - mean) / (std::sqrt(squares / (group_size - 1)) + 1e-4);
    const nlohmann::json& advantages = lines[r].at("advantages");
    REQUIRE(advantages.size() == lines[r].at("completion_ids").size());
    for (const nlohmann::json& advantage : advantages) {
      if (advantage.is_null()) {
        continue;
      }
      CHECK(advantage.get<double>() == Approx(expected).margin(1e-12));
      compared += expected != 0 ? 1 : 0;
    }
  }
  CHECK(compared > 20);
}

// The lines of samples.jsonl of a run of two steps.
std::vector<nlohmann::json> logged_samples(const std::vector<std::string>& words,
                                           sp::MeshShape shape = {1, 1, 1}) {
  std::vector<std::string> all{"log.samples=3"};
  all.insert(all.end(), words.begin(), words.end());
  const test::TemporaryDirectory dir;
  train(make_config(all), dir.path(), 2, shape);
  std::ifstream file(dir.path() / "samples.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  REQUIRE(lines.size() == 2 * 3);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    REQUIRE(lines[i].at("step") == 1 + i / 3);
  }
  return lines;
}

// The largest difference of log-probs among the samples of the first `steps` steps.
double difference(const std::vector<nlohmann::json>& runs, const char* name,
                  const std::vector<nlohmann::json>& others, const char* other_name,
                  std::size_t steps) {
  double largest = 0.0;
  int compared = 0;
  for (std::size_t i = 0; i < 3 * steps; ++i) {
    CHECK(runs[i].at("reward") == others[i].at("reward"));
    if (!runs[i].contains("advantages")) {
      continue;
    }
    for (std::size_t t = 0; t < runs[i].at("tokens").size(); ++t) {
      if (!runs[i].at("advantages")[t].is_null()) {
        largest = std::max(largest, std::abs(runs[i].at(name)[t].get<double>() -
                                             others[i].at(other_name)[t].get<double>()));
        ++compared;
      }
    }
  }
  CHECK(compared > 5);
  return largest;
}

// Guards: log-probs of samples that differ on another layout, or are counted once for each rank.
// Oracle: one rank.
TEST_CASE("samples of a step have the log-probs of its passes, on every layout") {
  const std::vector<std::vector<std::string>> cases{
      {"train.num_mini_batches=2"},
      {"train.num_mini_batches=2", "log.samples_after=true"},
      {"train.num_mini_batches=2", "algorithm.correction.mode=tis"},
      {"algorithm.num_iterations=2", "algorithm.old_logprobs=rollout"}};
  for (const auto& words : cases) {
    CAPTURE(words);
    const auto one = logged_samples(words);
    const auto four = logged_samples(words, {1, 2, 2});
    CHECK(difference(one, "old_logprobs", four, "old_logprobs", 2) < 1e-9);
    CHECK(difference(one, "new_logprobs", four, "new_logprobs", 2) < 1e-9);
    CHECK(difference(one, "old_logprobs", one, "new_logprobs", 2) > 1e-4);
  }
}

// Guards: log-probs of another pass or another sample. Oracles: the scoring pass and the pass after
// the update, which are forward passes of their own.
TEST_CASE("without a pass of its own a sample has the log-probs of the step's training passes") {
  const auto plain = logged_samples({});
  for (const nlohmann::json& line : plain) {
    CHECK_FALSE(line.contains("new_logprobs"));  // scored once
  }
  const auto scored = logged_samples({"algorithm.correction.mode=tis"});
  CHECK(difference(plain, "old_logprobs", scored, "old_logprobs", 1) < 1e-9);
  // The second pass over the samples is made with the weights after the first.
  const auto after = logged_samples({"log.samples_after=true"});
  const auto twice = logged_samples({"algorithm.num_iterations=2"});
  CHECK(difference(twice, "new_logprobs", after, "new_logprobs", 1) < 1e-9);
  CHECK(difference(plain, "old_logprobs", after, "new_logprobs", 1) > 1e-4);
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
