// Guards: a model whose matrices are divided over tensor-parallel ranks and that trains differently
// from one on one rank, whatever other axes the mesh has: a gradient summed over too few or too
// many ranks, heads or rows that do not divide, ranks without a head, experts of the wrong ranks.
#include <ATen/ATen.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/quantised_layer.h"
#include "engine/models/value_model.h"
#include "tests/support/catch.h"
#include "tests/support/compare_training.h"
#include "tests/support/ranks.h"
#include "tests/support/sharded_training.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

using Layout = test::ShardLayout;
using Outcome = test::ShardOutcome;

constexpr int64_t kSteps = 5;
constexpr double kTolerance = 1e-10;

struct Model {
  const char* name;
  engine::ModelConfig config;
};

engine::ModelConfig qwen3(bool tied) {
  engine::ModelConfig config = test::tiny_config();
  config.tie_word_embeddings = tied;
  return config;
}

engine::ModelConfig qwen3_moe() {
  engine::ModelConfig config = qwen3(false);
  config.experts = {.count = 5, .per_token = 2, .intermediate_size = 12, .normalise_weights = true};
  config.blocks = {{}, {.channel_mixer = engine::ChannelMixerKind::kExperts}};
  return config;
}

// Six query heads for three of keys and values, which no number of ranks here divides well.
engine::ModelConfig uneven_heads() {
  engine::ModelConfig config = qwen3(true);
  config.num_attention_heads = 6;
  config.num_key_value_heads = 3;
  config.attention.qkv_bias = config.attention.o_bias = config.mlp_bias = true;
  return config;
}

const std::vector<Model>& models() {
  static const std::vector<Model> all{{"qwen3 tied", qwen3(true)},
                                      {"uneven heads", uneven_heads()},
                                      {"qwen3 with experts", qwen3_moe()},
                                      {"deepseek v3", test::latent_config()},
                                      {"gpt-oss", test::stacked_config()},
                                      {"qwen3.5", test::hybrid_config(false)},
                                      {"qwen3-next", test::hybrid_config(true)}};
  return all;
}

Outcome train(const Layout& layout, const engine::ModelConfig& model) {
  return test::train_in_double(layout, model, kSteps);
}

const std::vector<Layout>& layouts() {
  using Offload = rl::OptimizerOffload;
  static const std::vector<Layout> all{
      {.tensor = 2},
      {.tensor = 3},
      {.tensor = 5},
      {.shard = 2, .stage = 3, .tensor = 2},
      {.ulysses = 2, .stage = 2, .activations = {engine::Recompute::kFull}, .tensor = 2},
      {.ring = 2, .mode = rl::CpFsdpMode::kNone, .tensor = 2},
      {.replicate = 2, .ulysses = 2, .stage = 1, .offload = Offload::kFull, .tensor = 2},
      {.shard = 2,
       .ulysses = 2,
       .activations = {engine::Recompute::kSelective, /*offload=*/true, /*mlp_tile_tokens=*/5},
       .offload = Offload::kFull,
       .offload_parameters = true,
       .tensor = 2},
  };
  return all;
}

// A critic, trained towards zero: its losses and norms.
Outcome train_critic(const Layout& layout, const engine::ModelConfig& model) {
  Outcome outcome;
  rl::Config config;
  config.parallel = layout.config();
  config.model.dtype = rl::DType::kFloat64;
  const auto body = [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    const engine::ComputeContext context = rl::compute_context(config, groups);
    auto critic = std::make_unique<engine::ValueModel>(model, context);
    critic->trunk().init_random(3, 0.3);
    assign(critic->head().storage(), 0,
           at::arange(model.hidden_size, at::kDouble).sin().view({1, -1}));
    engine::ModelRunner runner(std::move(critic), groups, engine::AdamWOptions{});
    const rl::LocalBatch local{
        sp::collate(test::uneven_documents(), mesh,
                    engine::collator_options(model, layout.micro_batch_tokens, {},
                                             engine::tensor_place(context))),
        0};
    const auto inputs = rl::model_inputs(local, {}, at::kDouble);
    for (int64_t step = 0; step < kSteps; ++step) {
      at::Tensor loss = at::zeros({1}, at::kDouble);
      const engine::SequenceWork work =
          runner.train(inputs, [&](const engine::HeadOutput& output, const engine::Columns&) {
            const at::Tensor sum = output.values_n.square().sum() / 60.0;
            loss += sum.detach();
            return sum;
          });
      TORCH_CHECK(work.sent_bytes == work.predicted_bytes, "sent ", work.sent_bytes,
                  " bytes, predicted ", work.predicted_bytes);
      groups.control(sp::axes::kLoss)->all_reduce_sum(loss, "test");
      const double norm = runner.step(1e-2, 0.5).grad_norm;
      if (mesh.rank() == 0) {
        outcome.losses.push_back(loss.item<double>());
        outcome.norms.push_back(norm);
      }
    }
  };
  test::run_ranks_in_memory(rl::mesh_shape(config.parallel), body,
                            rl::sharding_axes(config.parallel));
  return outcome;
}

void require_equal(const Outcome& found, const Outcome& expected) {
  REQUIRE(found.weights.size() == expected.weights.size());
  for (std::size_t u = 0; u < expected.weights.size(); ++u) {
    const auto difference = (found.weights[u] - expected.weights[u]).abs().max().item<double>();
    CAPTURE(u, difference);
    REQUIRE(difference < kTolerance);
  }
  for (int64_t step = 0; step < kSteps; ++step) {
    CAPTURE(step);
    REQUIRE(found.losses[step] == Approx(expected.losses[step]).epsilon(kTolerance));
    REQUIRE(found.norms[step] == Approx(expected.norms[step]).epsilon(kTolerance));
  }
}

// Whether each Ulysses rank has a key head of its tensor-parallel rank's delta nets.
bool has_heads(const engine::ModelConfig& model, const Layout& layout) {
  return layout.ulysses <= engine::most_ulysses_ranks(model, layout.tensor);
}

// Every `stride`-th layout of each model, another one for each.
void check_grid(std::size_t stride) {
  for (std::size_t m = 0; m < models().size(); ++m) {
    const Model& model = models()[m];
    const Outcome alone = train({}, model.config);
    CHECK(alone.norms[0] > 0.01);
    for (std::size_t l = m % stride; l < layouts().size(); l += stride) {
      if (!has_heads(model.config, layouts()[l])) {
        continue;
      }
      DYNAMIC_SECTION(model.name << ": " << layouts()[l].name()) {
        require_equal(train(layouts()[l], model.config), alone);
      }
    }
  }
}

}  // namespace

TEST_CASE("tensor-parallel training follows that of one rank, beside every other axis") {
  check_grid(4);
}

TEST_CASE("all layouts of tensor-parallel training", "[.][grid]") { check_grid(1); }

TEST_CASE("a critic on tensor ranks learns as on one: values are gathered, gradients not summed") {
  const Outcome alone = train_critic({}, qwen3(false));
  CHECK(alone.losses.back() < alone.losses.front());
  for (const Layout& layout :
       {Layout{.tensor = 3}, Layout{.shard = 2, .ulysses = 2, .tensor = 2}}) {
    CAPTURE(layout.name());
    require_equal(train_critic(layout, qwen3(false)), alone);
  }
}

TEST_CASE("bytes between tensor ranks are those predicted, recomputed or not") {
  for (const Model& model : {models()[0], models()[3], models()[6]}) {
    for (Layout layout : {Layout{.tensor = 3}, Layout{.ring = 2, .tensor = 2}}) {
      for (const engine::Recompute recompute :
           {engine::Recompute::kNone, engine::Recompute::kSelective}) {
        layout.activations.recompute = recompute;
        const Outcome found = train(layout, model.config);
        CAPTURE(model.name, layout.name());
        CHECK(found.sent_bytes > 0.0);
        CHECK(found.sent_bytes == found.predicted_bytes);
      }
    }
  }
}

TEST_CASE("bytes between tensor ranks are those predicted with adapters, too") {
  for (const Model& model : {models()[0], models()[1]}) {
    for (Layout layout : {Layout{.tensor = 3}, Layout{.ulysses = 2, .tensor = 2},
                          Layout{.tensor = 2, .pipeline = 2}}) {
      layout.lora_rank = 2;
      for (const engine::Recompute recompute :
           {engine::Recompute::kNone, engine::Recompute::kFull}) {
        layout.activations.recompute = recompute;
        const Outcome found = train(layout, model.config);
        CAPTURE(model.name, layout.name());
        CHECK(found.sent_bytes > 0.0);
        CHECK(found.sent_bytes == found.predicted_bytes);
      }
    }
  }
}

TEST_CASE("experts are balanced over the rows of all tensor ranks") {
  const engine::BalanceOptions balance{.aux_loss_coef = 0.1, .bias_update_rate = 0.01};
  const engine::BalanceOptions loss_alone{.aux_loss_coef = 0.1};
  for (const auto& [index, options] : {std::pair{2, loss_alone}, std::pair{3, balance}}) {
    const engine::ModelConfig& model = models()[index].config;
    const Outcome alone = train({.balance = options}, model);
    for (Layout layout : {Layout{.tensor = 3}, Layout{.ulysses = 2, .expert = 2, .tensor = 2}}) {
      layout.balance = options;
      DYNAMIC_SECTION(models()[index].name << ": " << layout.name()) {
        const Outcome found = train(layout, model);
        require_equal(found, alone);
        REQUIRE(found.balance_losses.size() == static_cast<std::size_t>(kSteps));
        for (int64_t step = 0; step < kSteps; ++step) {
          CHECK(found.balance_losses[step] == Approx(alone.balance_losses[step]).epsilon(1e-10));
        }
      }
    }
  }
}

TEST_CASE("adapters of matrices that are divided train as on one rank, on a quantised base too") {
  engine::ModelConfig model = uneven_heads();
  model.hidden_size = 64;  // a row is a block of nf4, and so are eight heads and a part of the MLP
  model.num_attention_heads = 16;
  model.num_key_value_heads = 4;
  model.intermediate_size = 256;
  for (const auto base :
       {std::optional<engine::QuantisedFormat>(), std::optional(engine::QuantisedFormat::kNf4),
        std::optional(engine::QuantisedFormat::kInt8)}) {
    const Outcome alone = train({.lora_rank = 3, .base = base}, model);
    for (Layout layout : {Layout{.tensor = 2}, Layout{.shard = 2, .ulysses = 2, .tensor = 2}}) {
      layout.lora_rank = 3;
      layout.base = base;
      DYNAMIC_SECTION(layout.name()) { require_equal(train(layout, model), alone); }
    }
  }
  // Six heads of eight components over four ranks: two heads are no block of 64 columns.
  engine::ModelConfig odd = model;
  odd.num_attention_heads = 12;
  CHECK_THAT(engine::packed_cut_problem(odd, engine::QuantisedFormat::kNf4, 4),
             Catch::Contains("self_attn.o_proj.weight: columns 0 to 24") &&
                 Catch::Contains("cut a block of 64"));
  CHECK(engine::packed_cut_problem(odd, engine::QuantisedFormat::kInt8, 4).empty());
  CHECK(engine::packed_cut_problem(model, engine::QuantisedFormat::kNf4, 2).empty());
}

TEST_CASE("experts are divided over tensor-parallel ranks, which hold different rows") {
  for (const auto& [index, layout] : {std::pair{2, Layout{.expert = 2, .tensor = 2}},
                                      std::pair{2, Layout{.ulysses = 2, .expert = 4, .tensor = 2}},
                                      std::pair{3, Layout{.shard = 2, .expert = 2, .tensor = 2}},
                                      std::pair{6, Layout{.expert = 3, .tensor = 3}}}) {
    DYNAMIC_SECTION(models()[index].name << ": " << layout.name()) {
      require_equal(train(layout, models()[index].config), train({}, models()[index].config));
    }
  }
}
