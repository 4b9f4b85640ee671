// Guards: stages of a model that compute other numbers than the whole model, read other parameters
// of its files, or name them otherwise; a tied embedding whose copies start or train apart.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/generate/generator.h"
#include "engine/io/adapter_directory.h"
#include "engine/io/hf_directory.h"
#include "engine/models/decoder_units.h"
#include "engine/models/stage.h"
#include "tests/support/catch.h"
#include "tests/support/local_hybrid.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

using Stages = std::vector<std::unique_ptr<Decoder>>;
using Named = std::map<std::string, at::Tensor>;

const std::vector<int64_t> kLengths{6, 1, 3};

// What a forward and backward give.
struct Pass {
  at::Tensor logprobs_n, entropy_n;
  Named gradients;
  at::Tensor routes_sLK;
  ExpertLoad load;
};

at::Tensor token_ids() { return at::tensor({1, 2, 3, 4, 5, 6, 7, 8, 9, 1}, at::kLong); }

std::unique_ptr<AttentionBackend> backend_for(const ModelConfig& config) {
  if (config.delta_net.shape.value_heads > 0) {
    return std::make_unique<test::LocalHybrid>(config, kLengths);
  }
  return std::make_unique<test::LocalAttention>(kLengths);
}

// Gradients by name; those of two copies of one parameter are added, as stage.h says.
Named gradients_of(Stages& stages) {
  Named sums;
  for (const auto& stage : stages) {
    for (ParamUnit* unit : stage->trained_units()) {
      for (std::size_t i = 0; i < unit->specs().size(); ++i) {
        at::Tensor& sum = sums[unit->specs()[i].name];
        const at::Tensor own = unit->layout().view_of(unit->grad(), i);
        sum = sum.defined() ? sum + own : own;
      }
    }
  }
  return sums;
}

// Forward and backward of the stages, one after another. replayed_sLK: undefined: routers choose.
Pass run(Stages& stages, const at::Tensor& replayed_sLK = {}) {
  const ModelConfig& config = stages.front()->config();
  const at::Tensor positions_s = test::packed_positions(kLengths);
  Pass pass;
  pass.load.resize(config.num_hidden_layers);
  const auto backend = backend_for(config);
  std::deque<ExpertNotes> notes;
  std::vector<at::Tensor> inputs, outputs, routes;
  for (const auto& stage : stages) {
    for (ParamUnit* unit : stage->trained_units()) {
      unit->zero_grad();
    }
    inputs.push_back(inputs.empty()
                         ? token_ids()
                         : outputs.back().detach().requires_grad_(outputs.back().requires_grad()));
    ExpertLoad load = no_expert_load(*stage);
    notes.push_back(
        {.replayed_sLK = replayed_sLK, .records = config.experts.count > 0, .load = &load});
    outputs.push_back(stage->forward(inputs.back(), positions_s, *backend, &notes.back()));
    for (int64_t i = stage->stage().layers.begin; i < stage->stage().layers.end; ++i) {
      pass.load[i] = load[i];
    }
    notes.back().load = nullptr;
    routes.insert(routes.end(), notes.back().recorded_sK.begin(), notes.back().recorded_sK.end());
  }
  at::manual_seed(4);
  const at::Tensor weight_n = at::randn({10}, at::kDouble);
  const TokenScores scores = stages.back()->score(
      outputs.back(), (token_ids() + 5) % config.vocab_size, at::full({10}, 0.7, at::kDouble));
  ((scores.logprobs_n + 0.3 * scores.entropy_n) * weight_n).sum().backward();
  for (std::size_t k = stages.size() - 1; k > 0; --k) {
    if (outputs[k - 1].requires_grad()) {
      outputs[k - 1].backward(inputs[k].grad());
    }
  }
  pass.logprobs_n = scores.logprobs_n.detach();
  pass.entropy_n = scores.entropy_n.detach();
  pass.routes_sLK = routes.empty() ? at::Tensor() : at::stack(routes, 1);
  pass.gradients = gradients_of(stages);
  return pass;
}

Named exported(const Stages& stages) {
  Named all;
  for (const auto& stage : stages) {
    export_weights(WeightView(*stage), [&](UnitExport& units) {
      while (const auto unit = units.next()) {
        for (std::size_t i = 0; i < unit->specs().size(); ++i) {
          all[unit->specs()[i].name] = unit->tensor(i).clone();
        }
      }
    });
  }
  return all;
}

void check_equal(const Named& a, const Named& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, values] : a) {
    CAPTURE(name);
    REQUIRE(b.contains(name));
    CHECK(values.equal(b.at(name)));
  }
}

void check_equal(const Pass& a, const Pass& b) {
  CHECK(a.logprobs_n.equal(b.logprobs_n));
  CHECK(a.entropy_n.equal(b.entropy_n));
  check_equal(a.gradients, b.gradients);
  CHECK(a.load == b.load);
  REQUIRE(a.routes_sLK.defined() == b.routes_sLK.defined());
  CHECK((!a.routes_sLK.defined() || a.routes_sLK.equal(b.routes_sLK)));
}

Stages one(std::unique_ptr<Decoder> decoder) {
  Stages stages;
  stages.push_back(std::move(decoder));
  return stages;
}

// A model of random weights, its routers with corrections if they have any.
Stages random_model(const ModelConfig& config) {
  auto decoder = std::make_unique<Decoder>(config, at::kDouble);
  decoder->init_random(7, 0.3);
  if (config.experts.router == RouterKind::kSigmoid && config.experts.count > 0) {
    at::manual_seed(2);
    const auto layers = static_cast<int64_t>(expert_layers(config).size());
    decoder->move_router_corrections(
        at::randint(9, {layers, config.experts.count}, at::kLong).to(at::kDouble), 0.2);
  }
  return one(std::move(decoder));
}

Stages loaded(const std::filesystem::path& dir, const ModelConfig& config,
              const std::vector<int64_t>& cuts) {
  Stages stages;
  for (const Stage& stage : cut_stages(config, cuts)) {
    stages.push_back(std::make_unique<Decoder>(config, stage, at::kDouble));
    load_weights(dir, *stages.back());
  }
  return stages;
}

ModelConfig tied(ModelConfig config, bool is_tied) {
  config.tie_word_embeddings = is_tied;
  return config;
}

// Experts in three layers of four, so that a stage's first one is not the model's.
ModelConfig deep_experts() {
  ModelConfig config = test::latent_config();
  config.num_hidden_layers = 4;
  config.blocks.insert(config.blocks.end(), 2, config.blocks.back());
  return config;
}

TEST_CASE("stages give the whole decoder's log-probs and gradients to the bit") {
  struct Model {
    const char* name;
    ModelConfig config;
    std::vector<std::vector<int64_t>> cuts;
  };
  const std::vector<Model> models{
      {"plain", tied(test::tiny_config(), false), {{1}, {1, 2}, {0, 2}}},
      {"tied", tied(test::tiny_config(), true), {{1}, {0, 1}}},
      {"experts", deep_experts(), {{2}, {1, 3}}},
      {"delta nets", test::hybrid_config(false), {{1}, {1, 2}}},
      {"delta nets and experts", test::hybrid_config(true), {{2}, {1, 2}}}};
  for (const Model& model : models) {
    const test::TemporaryDirectory dir;
    Stages whole = random_model(model.config);
    save_decoder(*whole.front(), dir.path(), at::kDouble);
    const Pass expected = run(whole);
    REQUIRE(expected.gradients.size() == decoder_specs(model.config).size());
    // The embedding's has come through all layers.
    REQUIRE(expected.gradients.at(trunk_prefix(model.config) + "embed_tokens.weight")
                .abs()
                .max()
                .item<double>() > 1e-2);
    for (const std::vector<int64_t>& cuts : model.cuts) {
      CAPTURE(model.name, cuts);
      Stages stages = loaded(dir.path(), model.config, cuts);
      check_equal(run(stages), expected);
      check_equal(exported(stages), exported(whole));
    }
  }
}

TEST_CASE("stages that recompute or replay routes give the whole decoder's bits") {
  for (const ModelConfig& config : {deep_experts(), test::hybrid_config(true)}) {
    const test::TemporaryDirectory dir;
    Stages whole = random_model(config);
    save_decoder(*whole.front(), dir.path(), at::kDouble);
    Stages stages = loaded(dir.path(), config, {1, 2});
    // Other routes in each layer, so that a stage that takes another layer's is seen.
    at::manual_seed(8);
    const auto layers = static_cast<int64_t>(expert_layers(config).size());
    const at::Tensor replayed_sLK =
        std::get<1>(at::rand({10, layers, config.experts.count}).topk(config.experts.per_token, 2));
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      CAPTURE(config.model_type, static_cast<int>(recompute));
      for (Stages* all : {&whole, &stages}) {
        for (const auto& stage : *all) {
          stage->set_activation_options({.recompute = recompute});
        }
      }
      const Pass expected = run(whole, replayed_sLK);
      CHECK(expected.routes_sLK.to(at::kLong).equal(replayed_sLK));
      check_equal(run(stages, replayed_sLK), expected);
    }
  }
}

TEST_CASE("each stage moves the corrections of its own routers") {
  const ModelConfig config = deep_experts();
  const test::TemporaryDirectory dir;
  Stages whole = random_model(config);
  save_decoder(*whole.front(), dir.path(), at::kDouble);
  Stages stages = loaded(dir.path(), config, {1, 3});
  at::manual_seed(5);
  const at::Tensor routes_LX = at::randint(9, {3, config.experts.count}, at::kLong).to(at::kDouble);
  whole.front()->move_router_corrections(routes_LX, 0.1);
  CHECK_THROWS_WITH(stages[0]->move_router_corrections(routes_LX, 0.1),
                    Catch::Contains("no corrections"));  // its one layer has an MLP
  stages[1]->move_router_corrections(routes_LX, 0.1);
  stages[2]->move_router_corrections(routes_LX, 0.1);
  check_equal(exported(stages), exported(whole));
}

TEST_CASE("stages of a quantised base with adapters give the whole decoder's bits") {
  const test::TemporaryDirectory dir;
  const std::filesystem::path factors = dir.path() / "adapters";
  std::filesystem::create_directory(factors);
  for (const bool packs : {false, true}) {
    ModelConfig config = tied(test::tiny_config(), false);
    config.num_hidden_layers = 3;
    save_decoder(*random_model(config).front(), dir.path(), at::kDouble);
    WeightStorage storage{.frozen = true, .projections = {}};
    if (packs) {
      storage.projections = QuantisedFormat::kNf4;
    }
    const auto make = [&](const Stage& stage) {
      WeightLoader load(dir.path(), config);
      return std::make_unique<Decoder>(config, stage, at::kDouble, storage, std::ref(load));
    };
    const AdapterOptions options{2, 4.0, {"q_proj", "v_proj", "down_proj"}};
    Stages whole = one(make(whole_stage(config)));
    Adapters& adapters = whole.front()->add_adapters(options);
    adapters.init_random(3);
    {
      const at::NoGradGuard no_grad;
      adapters.unit().flat().add_(0.05);  // so that no B is zero
    }
    save_adapters(adapters, factors, "base");
    const Pass expected = run(whole);
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{2}, {0, 1, 3}}) {
      CAPTURE(packs, cuts);
      Stages stages;
      for (const Stage& stage : cut_stages(config, cuts)) {
        stages.push_back(make(stage));
        load_adapters(factors, stages.back()->add_adapters(options));
      }
      check_equal(run(stages), expected);
      check_equal(exported(stages), exported(whole));
    }
  }
}

TEST_CASE("a stage starts from the random values of the whole model") {
  for (const bool is_tied : {false, true}) {
    const ModelConfig config = tied(deep_experts(), is_tied);
    Stages whole = one(std::make_unique<Decoder>(config, at::kDouble)), stages;
    whole.front()->init_random(7, 0.3);
    for (const Stage& stage : cut_stages(config, {1, 3})) {
      stages.push_back(std::make_unique<Decoder>(config, stage, at::kDouble));
      stages.back()->init_random(7, 0.3);
    }
    check_equal(exported(stages), exported(whole));
    const AdapterOptions options{2, 4.0, {"o_proj"}};
    whole.front()->add_adapters(options).init_random(9);
    for (const auto& stage : stages) {
      stage->add_adapters(options).init_random(9);
      const Adapters& own = *stage->adapters();
      const Adapters& all = *whole.front()->adapters();
      for (std::size_t i = 0; i < own.unit().specs().size(); ++i) {
        const auto same = std::ranges::find(all.unit().specs(), own.unit().specs()[i]);
        REQUIRE(same != all.unit().specs().end());
        CHECK(own.unit().view(i).equal(all.unit().view(same - all.unit().specs().begin())));
      }
    }
  }
}

TEST_CASE("the sampling forward of stages, and a whole copy of one, compute as the stage") {
  const ModelConfig config = test::hybrid_config(true);
  Stages whole = random_model(config), stages;
  for (const Stage& stage : cut_stages(config, {1, 3})) {
    stages.push_back(std::make_unique<Decoder>(config, stage, at::kDouble));
    stages.back()->init_random(7, 0.3);
  }
  const at::NoGradGuard no_grad;
  const auto backend = backend_for(config);
  const at::Tensor positions_s = test::packed_positions(kLengths);
  at::Tensor sampled = token_ids(), copied = token_ids();
  for (const auto& stage : stages) {
    sampled = stage->forward(stage->materialize(), sampled, positions_s, *backend);
    export_weights(WeightView(*stage), [&](UnitExport& units) {
      copied = whole_copy(units)->forward(copied, positions_s, *backend);
    });
  }
  const at::Tensor expected = whole.front()->forward(token_ids(), positions_s, *backend);
  CHECK(sampled.equal(expected));
  CHECK(copied.equal(expected));
  CHECK(
      stages.back()->materialize().head_VE.value.equal(whole.front()->materialize().head_VE.value));
}

TEST_CASE("stages that are no part of the model, and inputs that do not fit one, are refused") {
  const ModelConfig config = test::tiny_config();
  const auto refused = [&](const Stage& stage, const char* why) {
    CHECK_THROWS_WITH(Decoder(config, stage, at::kDouble), Catch::Contains(why));
  };
  refused({{0, 3}, true, true}, "layers 0 to 3 of a model with 2");
  refused({{1, 2}, true, true}, "it embeds, so its layers begin at 0, got 1");
  refused({{0, 1}, true, true}, "it scores, so its layers end at 2, got 1");
  refused({{1, 1}, false, false}, "no layer, no embedding and no head");
  CHECK_THROWS_WITH(cut_stages(config, {2, 1}), Catch::Contains("layers 2 to 1 of a model"));

  const at::Tensor ids = at::tensor({1, 2}, at::kLong), positions = at::tensor({0, 1}, at::kLong);
  const at::Tensor hidden = at::zeros({2, config.hidden_size}, at::kDouble);
  test::LocalAttention attention({2});
  const std::vector<Stage> stages = cut_stages(config, {1});
  const Decoder first(config, stages[0], at::kDouble), last(config, stages[1], at::kDouble);
  CHECK_THROWS_WITH(last.forward(ids, positions, attention),
                    Catch::Contains("layers 1 to 2 does not embed; expected hidden states Double"));
  CHECK_THROWS_WITH(last.forward(hidden.to(at::kFloat), positions, attention),
                    Catch::Contains("does not embed"));
  CHECK_THROWS_WITH(first.forward(hidden, positions, attention),
                    Catch::Contains("ids and positions must be int64"));
  CHECK_THROWS_WITH(first.score(hidden, ids, at::ones({2}, at::kDouble)),
                    Catch::Contains("layers 0 to 1 has no head"));
  CHECK_THROWS_AS(first.layer(1), std::out_of_range);
  CHECK_THROWS_WITH(generate(first, {{1}}, {.max_new_tokens = 1}),
                    Catch::Contains("a stage of a model"));
}

}  // namespace
}  // namespace ringside::engine
