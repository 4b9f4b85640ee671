// Guards: a preset or an option of the algorithm whose step is not what its paper or system
// computes, and a step that depends on how it lies over the ranks. The trainer's own step (rewards,
// collation, scores, advantages, updates, metrics) of recorded rollouts at one rank, at every kind
// of sequence parallelism and at micro-batches of one sample, three and all. Oracle: PyTorch fp64
// (tests/goldens/regression.py); in fp32 one rank too.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "rl/config/load.h"
#include "rl/config/presets.h"
#include "rl/data/rollout_file.h"
#include "rl/rewards/reward_set.h"
#include "rl/setup/sharding.h"
#include "rl/trainer/learner.h"
#include "rl/trainer/step_metrics.h"
#include "rl/trainer/training_run.h"
#include "tests/rl/regression_figures.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;

namespace {

using nlohmann::json;
using test::Figures;
namespace fs = std::filesystem;

const fs::path kGoldens = fs::path(RINGSIDE_GOLDENS) / "regression";
constexpr int64_t kGroupSize = 4;

const json& golden_cases() {
  static const auto cases = json::parse(std::ifstream(kGoldens / "cases.json"));
  return cases;
}

const json& golden_case(const std::string& name) {
  const json& cases = golden_cases();
  return *std::find_if(cases.begin(), cases.end(),
                       [&](const json& golden) { return golden["name"] == name; });
}

std::vector<json> lines_of(const std::string& file) {
  std::vector<json> lines;
  std::ifstream in(kGoldens / file);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(json::parse(line));
  }
  return lines;
}

// What a line's completion says, scored by the recipe's rewards.
rl::RewardScores score_text(const json& line, const std::string& recipe) {
  const std::string completion = line["text"]["completion"], answer = line["text"]["answer"];
  return rl::RewardSet(recipe, {})
      .score({.prompt = "", .completion = completion, .answer = answer});
}

// Recorded rollouts with the rewards of their texts.
std::vector<bridge::Rollout> scored_rollouts(const std::string& file, const std::string& recipe) {
  auto rollouts = rl::read_rollout_file(kGoldens / file, kGroupSize);
  const auto lines = lines_of(file);
  for (std::size_t r = 0; r < rollouts.size(); ++r) {
    rollouts[r].rewards = score_text(lines[r], recipe).raw;
  }
  return rollouts;
}

// How a step lies over the ranks and over micro-batches.
struct Layout {
  std::string name;
  sp::MeshShape shape;
  std::vector<std::string> words;  // of the configuration
  bool whole = true;               // a mini-batch is one micro-batch
  bool every_case = true;          // else those that is_distinct() names, to save time
  std::size_t turn = 0;            // of kTurns: which of the others; kEveryTurn: all
};

// Cases that are not distinct take turns over the layouts: each runs at one layout in four.
constexpr std::size_t kTurns = 4, kEveryTurn = kTurns;

std::vector<Layout> layouts() {
  const std::string gather = "sp.ring_impl=all_gather";
  const std::string one_sample =
      "train.tokens_per_micro_batch=1";  // a longer document has a micro-batch of its own
  const std::string three_samples = "train.tokens_per_micro_batch=40";
  return {
      {"one rank", {1, 1, 1}, {}},
      {"ulysses 2", {1, 1, 2}, {}},
      {"ulysses 4", {1, 1, 4}, {}},
      {"ring 2", {1, 2, 1}, {}},
      {"ring 4", {1, 4, 1}, {}},
      {"ring 2, all-gather", {1, 2, 1}, {gather}},
      {"ring 4, all-gather", {1, 4, 1}, {gather}},
      {"ring 2 x ulysses 2", {1, 2, 2}, {}},
      {"dp 2", {2, 1, 1}, {}, false},
      {"dp 2 x ulysses 2", {2, 1, 2}, {}, false},
      {"dp 2 x ring 2", {2, 2, 1}, {}, false, false},
      {"2 shards", {1, 1, 1, 2}, {"parallel.data_parallel_shard_size=2"}, false},
      {"2 shards x ulysses 2, optimizer on the host",
       {1, 1, 2, 2},
       {"parallel.data_parallel_shard_size=2", "parallel.zero_stage=1", "optimizer.offload=full"},
       false,
       false},
      {"one rank, micro-batches of 1", {1, 1, 1}, {one_sample}, false},
      {"one rank, micro-batches of 3", {1, 1, 1}, {three_samples}, false},
      {"ring 2, micro-batches of 1", {1, 2, 1}, {one_sample}, false, false},
      {"ulysses 2, micro-batches of 3", {1, 1, 2}, {three_samples}, false},
      {"ring 2 cut in zigzag, micro-batches of 3",
       {1, 2, 1},
       {three_samples, "sp.placement=zigzag"},
       false,
       false},
      {"pipeline 2, micro-batches of 3",
       {.pipeline = 2},
       {three_samples, "parallel.pipeline_parallel_size=2"},
       false,
       false},
      {"pipeline 2 x ulysses 2 with 2 stages a rank, micro-batches of 1",
       {.ulysses = 2, .pipeline = 2},
       {one_sample, "parallel.pipeline_parallel_size=2", "parallel.stages_per_rank=2",
        "model.recompute=full"},
       false,
       false},
      {"pipeline 2 x tensor 2, micro-batches of 3",
       {.pipeline = 2, .tensor = 2},
       {three_samples, "parallel.pipeline_parallel_size=2", "parallel.tensor_parallel_size=2"},
       false,
       false},
      {"tensor 2", {.tensor = 2}, {"parallel.tensor_parallel_size=2"}, true, false},
      {"tensor 2 x ring 2, micro-batches of 3",
       {.ring = 2, .tensor = 2},
       {three_samples, "parallel.tensor_parallel_size=2"},
       false,
       false},
      {"tensor 2 x 2 shards",
       {.dp_shard = 2, .tensor = 2},
       {"parallel.data_parallel_shard_size=2", "parallel.tensor_parallel_size=2"},
       false,
       false}};
}

// One case of each way in which tokens of a step depend on each other.
bool is_distinct(const std::string& name) {
  static const std::set<std::string> kDistinct{"dapo",
                                               "gspo",
                                               "ppo",
                                               "trl_gspo",
                                               "nemo_rl",
                                               "areal",
                                               "kl_in_reward",
                                               "seq_mask_tis",
                                               "opsm",
                                               "entropy_bonus",
                                               "gmpo",
                                               "clip_cov",
                                               "vespo",
                                               "kl_cov",
                                               "mask_truncated",
                                               "gae_turns",
                                               "gspo_forks",
                                               "opd",
                                               "opd_jensen_shannon",
                                               "opd_top_k"};
  return kDistinct.contains(name);
}

// The layouts with their turns, from `first` on; one rank, the first layout, has every case.
std::vector<Layout> layouts_in_turn(std::size_t first) {
  std::vector<Layout> all = layouts();
  for (std::size_t at = 0; at < all.size(); ++at) {
    all[at].turn = at == 0 ? kEveryTurn : (first + at) % kTurns;
  }
  return all;
}

bool has_case(const Layout& layout, std::size_t at, const std::string& name) {
  const bool its_turn = layout.turn == kEveryTurn || at % kTurns == layout.turn;
  return is_distinct(name) || (layout.every_case && its_turn);
}

struct Case {
  std::string name;
  rl::Config config;
  std::vector<bridge::Rollout> rollouts;
};

Case make_case(const json& golden, const Layout& layout, const std::string& dtype) {
  std::vector<std::string> words{
      "algorithm.preset=" + golden["preset"].get<std::string>(),
      "model.path=" + (kGoldens / "policy").string(),
      "model.dtype=" + dtype,
      "parallel.data_parallel_replicate_size=" + std::to_string(layout.shape.dp_replicate),
      "parallel.ringattn_parallel_size=" + std::to_string(layout.shape.ring),
      "parallel.ulysses_parallel_size=" + std::to_string(layout.shape.ulysses)};
  if (golden.contains("teacher")) {
    words.push_back("algorithm.distillation.teacher=" +
                    (kGoldens / golden["teacher"].get<std::string>()).string());
  }
  for (const std::string word : golden["overrides"]) {
    words.push_back(word);
  }
  words.insert(words.end(), layout.words.begin(), layout.words.end());
  Case one{golden["name"], rl::load_config_or_throw({}, words), {}};
  // As words they would be refused where nothing reads them.
  one.config.model.reference_path = (kGoldens / "reference").string();
  one.config.algorithm.critic.model_path = (kGoldens / "critic").string();
  one.rollouts = scored_rollouts(golden["rollouts"], one.config.rollout.reward);
  return one;
}

std::vector<Case> cases_of(const Layout& layout, const std::string& dtype) {
  std::vector<Case> cases;
  for (std::size_t at = 0; at < golden_cases().size(); ++at) {
    const json& golden = golden_cases()[at];
    // The mean of each micro-batch is defined by the packing: another packing is another loss.
    const bool by_packing = golden["name"] == "trl_bnpo";
    if (has_case(layout, at, golden["name"]) && (layout.whole || !by_packing)) {
      cases.push_back(make_case(golden, layout, dtype));
    }
  }
  return cases;
}

void add_updates(Figures& figures, const rl::StepUpdates& updates) {
  for (std::size_t u = 0; u < updates.policy.size(); ++u) {
    const rl::StepFigures& of_update = updates.policy[u].figures;
    const std::string name = "updates[" + std::to_string(u) + "].";
    figures[name + "loss"] = {of_update["loss"]};
    figures[name + "policy_loss"] = {of_update["policy_loss"]};
    figures[name + "kl"] = {of_update["kl"]};
    figures[name + "entropy"] = {of_update["entropy"]};
    figures[name + "clip_low"] = {of_update["clipped_low"]};
    figures[name + "clip_high"] = {of_update["clipped_high"]};
    figures[name + "grad_norm"] = {updates.policy[u].grad_norm};
  }
  for (std::size_t u = 0; u < updates.critic.size(); ++u) {
    figures["critic[" + std::to_string(u) + "].loss"] = {updates.critic[u].figures["loss"]};
    figures["critic[" + std::to_string(u) + "].grad_norm"] = {updates.critic[u].grad_norm};
  }
}

// One training step as rl/trainer/trainer.cpp takes it. Collective.
Figures step_figures(const Case& one, const fs::path& run_dir, const sp::Mesh& mesh,
                     const sp::ProcessGroups& comms) {
  rl::TrainingRun run({one.config, run_dir / one.name, 1, {}}, mesh, comms);
  rl::Learner learner(one.config, run.ranks(), run.policy(), run.state());
  rl::StepBatch batch = rl::make_step_batch(one.rollouts, one.config);
  auto mini_batches = learner.collate(batch);
  learner.score(mini_batches, batch);
  const rl::StepAdvantages advantages = learner.compute_advantages(batch);
  const rl::StepUpdates updates = learner.update(mini_batches, batch, advantages.sample_score);
  learner.adapt(updates, advantages,
                one.config.rollout.prompts_per_step * one.config.rollout.group_size);
  Figures figures;
  figures["rewards"] = advantages.sample_score;
  figures["advantages"] = advantages.advantage;
  figures["correction"] = updates.correction.weight;
  figures["values"] = batch.columns.value;
  figures["returns"] = advantages.returns;
  figures["next_kl_coef"] = {run.state().kl_coef};
  add_updates(figures, updates);
  for (const auto& [name, value] :
       rl::rl_step_metrics(one.rollouts, batch, advantages, updates, run.state(), one.config)) {
    figures["metric " + name] = {value};
  }
  return figures;
}

// Of every case on every rank, by the case's name.
using CaseFigures = std::map<std::string, std::vector<Figures>>;

CaseFigures run_cases(const Layout& layout, const std::string& dtype) {
  const test::TemporaryDirectory dir;
  const auto cases = cases_of(layout, dtype);
  CaseFigures figures;
  for (const Case& one : cases) {
    fs::create_directories(dir.path() / one.name);
    figures[one.name].resize(static_cast<std::size_t>(layout.shape.world_size()));
  }
  test::run_ranks_in_memory(
      layout.shape,
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        for (const Case& one : cases) {
          figures.at(one.name)[static_cast<std::size_t>(mesh.rank())] =
              step_figures(one, dir.path(), mesh, comms);
        }
      },
      rl::sharding_axes(cases.front().config.parallel));
  return figures;
}

// Whether the model is cut over ranks of this shape: over shards, and over the sequence-parallel
// ranks that the mode names.
bool is_cut(const sp::MeshShape& shape, const std::string& mode) {
  const bool all = mode == "all";
  return shape.dp_shard > 1 || (shape.ulysses > 1 && (all || mode == "ulysses_only")) ||
         (shape.ring > 1 && (all || mode == "ring_only"));
}

// Shards of every number and mode of folding, with each stage, offload and recomputation once. A
// stage is named where one is read: where the model is cut, or the optimizer is on the host.
std::vector<Layout> sharded_layouts() {
  std::vector<Layout> all;
  const std::vector<sp::MeshShape> shapes{{1, 1, 1, 2}, {1, 1, 1, 3}, {1, 1, 1, 4}, {2, 1, 1, 2},
                                          {1, 1, 2, 1}, {1, 2, 1, 1}, {1, 1, 2, 2}, {1, 2, 1, 2}};
  const std::vector<std::string> activations{"none", "full", "selective"};
  const std::vector<std::string> offloads{"none", "moments", "full"};
  for (const sp::MeshShape& shape : shapes) {
    for (const std::string mode : {"all", "ulysses_only", "ring_only", "none"}) {
      if (shape.ring * shape.ulysses == 1 && mode != "all") {
        continue;
      }
      const std::size_t turn = all.size();
      const std::string stage = std::to_string(1 + turn % 3);
      const std::string& recompute = activations[turn / 2 % 3];
      const std::string& offload = offloads[turn / 3 % 3];
      const bool has_stage = is_cut(shape, mode) || offload == "full";
      std::vector<std::string> words{
          "parallel.data_parallel_shard_size=" + std::to_string(shape.dp_shard),
          "parallel.cp_fsdp_mode=" + mode, "model.recompute=" + recompute,
          "optimizer.offload=" + offload};
      if (has_stage) {
        words.push_back("parallel.zero_stage=" + stage);
      }
      all.push_back({"replicas " + std::to_string(shape.dp_replicate) + ", shards " +
                         std::to_string(shape.dp_shard) + ", ring " + std::to_string(shape.ring) +
                         ", ulysses " + std::to_string(shape.ulysses) + ", " + mode +
                         (has_stage ? ", stage " + stage : "") + ", recompute " + recompute +
                         ", offload " + offload,
                     shape, words, false, false});
    }
  }
  return all;
}

}  // namespace

TEST_CASE("regression: rewards of texts are those found by hand") {
  for (const char* file : {"plain.jsonl", "forked.jsonl"}) {
    for (const json& line : lines_of(file)) {
      const json& text = line["text"];
      CAPTURE(text);
      const auto scores = score_text(line, "math_answer, exact_match * 0.5");
      REQUIRE(scores.raw.size() == 2);
      CHECK(scores.raw[0].second == text["math_answer"].get<double>());
      CHECK(scores.raw[1].second == text["exact_match"].get<double>());
      CHECK(scores.total ==
            text["math_answer"].get<double>() + 0.5 * text["exact_match"].get<double>());
    }
  }
}

TEST_CASE("regression: every preset has a case") {
  for (const auto name : rl::preset_names()) {
    const bool found = std::any_of(golden_cases().begin(), golden_cases().end(),
                                   [&](const json& golden) { return golden["preset"] == name; });
    CAPTURE(name);
    CHECK(found);
  }
}

namespace {

void check_against_pytorch(const std::vector<Layout>& all) {
  for (const Layout& layout : all) {
    DYNAMIC_SECTION(layout.name) {
      std::string wrong;
      for (const auto& [name, found] : run_cases(layout, "float64")) {
        wrong += test::differences(name, found, test::golden_figures(golden_case(name)),
                                   {1e-12, 1e-9, false});
      }
      CHECK(wrong == "");
    }
  }
}

void check_against_one_rank(std::vector<Layout> all) {
  static const CaseFigures one_rank = run_cases(layouts_in_turn(0).front(), "float32");
  SECTION("PyTorch") {
    std::string wrong;
    for (const auto& [name, found] : one_rank) {
      wrong += test::differences(name, found, test::golden_figures(golden_case(name)),
                                 {1e-6, 1e-5, true});
    }
    CHECK(wrong == "");
  }
  for (Layout& layout : all) {
    layout.every_case = layout.every_case && layout.shape.world_size() <= 2;  // fp64 runs them all
    DYNAMIC_SECTION(layout.name) {
      std::string wrong;
      for (const auto& [name, found] : run_cases(layout, "float32")) {
        wrong += test::differences(name, found, one_rank.at(name).front(), {1e-6, 1e-5, true});
      }
      CHECK(wrong == "");
    }
  }
}

std::vector<Layout> layouts_of_every_case() {
  std::vector<Layout> all = layouts();
  for (Layout& layout : all) {
    layout.turn = kEveryTurn;
  }
  return all;
}

}  // namespace

TEST_CASE("regression: every case has its turn at layouts of several ranks in fp64") {
  for (std::size_t at = 0; at < golden_cases().size(); ++at) {
    const std::string name = golden_cases()[at]["name"];
    CAPTURE(name);
    int64_t layouts_of_ranks = 0;
    for (const Layout& layout : layouts_in_turn(0)) {
      layouts_of_ranks += layout.shape.world_size() > 1 && has_case(layout, at, name);
    }
    CHECK(layouts_of_ranks >= 2);
  }
}

TEST_CASE("regression: a step in fp64 is PyTorch's at every layout") {
  check_against_pytorch(layouts_in_turn(0));
}

// By hand: every case at every layout; with policy, reference and critic sharded.
TEST_CASE("regression: every case in fp64 at every layout", "[.][grid]") {
  check_against_pytorch(layouts_of_every_case());
}

TEST_CASE("regression: a step in fp64 is PyTorch's however models are sharded", "[.][grid]") {
  check_against_pytorch(sharded_layouts());
}

TEST_CASE(
    "regression: a step in fp32 on one rank is PyTorch's in fp64, and at every layout that of one "
    "rank") {
  check_against_one_rank(layouts_in_turn(2));
}

TEST_CASE("regression: every case in fp32 at every layout", "[.][grid]") {
  check_against_one_rank(layouts_of_every_case());
}
