// Guards low-rank adapters: the factors' gradients, a frozen base without gradients, recomputation
// that loses the adapters, and merged weights that act otherwise than base and adapters.
#include "engine/models/adapters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <stdexcept>

#include "engine/models/acting_values.h"
#include "engine/models/decoder.h"
#include "engine/models/weight_export.h"
#include "engine/nn/linear.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/grad_check.h"
#include "tests/support/local_attention.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

using test::LocalAttention;
using test::max_abs_diff;

at::Tensor uniform(std::vector<int64_t> shape) { return at::rand(shape, at::kDouble) - 0.5; }

// A weight [7, 5] of two projections with 4 and 2 outputs, rank 3; the third has no adapter.
struct AdaptedWeight {
  at::Tensor base = uniform({7, 5});
  at::Tensor a1 = uniform({3, 5}), a2 = uniform({3, 5});
  at::Tensor b1 = uniform({4, 3}), b2 = uniform({2, 3});
  double scale = 1.5;

  at::Tensor matrix() const {
    return base + scale * at::cat({b1.mm(a1), at::zeros({1, 5}, at::kDouble), b2.mm(a2)});
  }
};

Weight weight_of(const AdaptedWeight& w, at::ScalarType compute,
                 const std::vector<at::Tensor>& leaf) {
  auto low_rank = std::make_shared<LowRank>();
  const auto value = [&](const at::Tensor& t) { return t.detach().to(compute); };
  const bool same = leaf[0].scalar_type() == compute;
  *low_rank = {same ? leaf[0] : value(leaf[0]),
               leaf[0],
               {{0, same ? leaf[1] : value(leaf[1]), leaf[1]},
                {5, same ? leaf[2] : value(leaf[2]), leaf[2]}},
               w.scale};
  Weight weight(value(w.base));
  weight.low_rank = low_rank;
  return weight;
}

std::vector<at::Tensor> leaves_of(const AdaptedWeight& w, at::ScalarType dtype) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& t : {at::cat({w.a1, w.a2}), w.b1, w.b2}) {
    leaves.push_back(t.detach().to(dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_());
  }
  return leaves;
}

TEST_CASE("a linear layer with low-rank additions equals one with the merged matrix") {
  at::manual_seed(1);
  for (const int64_t s : {0, 1, 9}) {
    for (const bool biased : {false, true}) {
      CAPTURE(s, biased);
      AdaptedWeight w;
      const at::Tensor x = uniform({s, 5}).requires_grad_(), dy = uniform({s, 7});
      const at::Tensor bias = biased ? uniform({7}) : at::Tensor();
      for (at::Tensor* t : {&w.a1, &w.a2, &w.b1, &w.b2}) {
        t->requires_grad_();
      }
      const at::Tensor expected =
          biased ? at::linear(x, w.matrix(), bias) : at::linear(x, w.matrix());
      expected.backward(dy);
      const at::Tensor d_x = x.grad().clone();
      x.mutable_grad().reset();

      const std::vector<at::Tensor> leaves = leaves_of(w, at::kDouble);
      const at::Tensor y = apply_linear(x, weight_of(w, at::kDouble, leaves), Weight(bias));
      y.backward(dy);
      CHECK(max_abs_diff(y, expected) < 1e-14);
      CHECK(max_abs_diff(x.grad(), d_x) < 1e-14);
      CHECK(max_abs_diff(leaves[0].grad(), at::cat({w.a1.grad(), w.a2.grad()})) < 1e-14);
      CHECK(max_abs_diff(leaves[1].grad(), w.b1.grad()) < 1e-14);
      CHECK(max_abs_diff(leaves[2].grad(), w.b2.grad()) < 1e-14);
    }
  }
}

TEST_CASE("the factors' gradients of a bf16 layer have the master dtype, and the base has none") {
  at::manual_seed(2);
  const AdaptedWeight w;
  const std::vector<at::Tensor> leaves = leaves_of(w, at::kFloat);
  const at::Tensor x = uniform({400, 5}).to(at::kBFloat16);  // as of a first layer: no gradient
  const Weight weight = weight_of(w, at::kBFloat16, leaves);
  apply_linear(x, weight).backward(at::ones({400, 7}, at::kBFloat16));
  for (const at::Tensor& leaf : leaves) {
    REQUIRE(leaf.grad().defined());
    CHECK(leaf.grad().scalar_type() == at::kFloat);
  }
  // d B1 = scale sum over rows of (x A1^T): 400 bf16 products that a bf16 sum would lose.
  const at::Tensor inner = x.mm(w.a1.to(at::kBFloat16).t()).mul_(w.scale).to(at::kDouble);
  CHECK(max_abs_diff(leaves[1].grad()[0], inner.sum(0)) < 1e-3);
  CHECK_FALSE(weight.leaf.grad().defined());

  Weight trained = weight;
  trained.leaf = w.base.to(at::kFloat).requires_grad_();
  CHECK_THROWS_WITH(apply_linear(x, trained), Catch::Contains("must be frozen"));
}

TEST_CASE("names of targeted projections are parsed, and unknown ones refused with the list") {
  CHECK(parse_adapter_targets("all-linear") == adapter_targets());
  CHECK(parse_adapter_targets("v_proj,  q_proj") == std::vector<std::string>{"q_proj", "v_proj"});
  for (const char* wrong : {"", "q_proj,", "lm_head", "q_proj, query"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH(parse_adapter_targets(wrong),
                      Catch::Contains("names the projection") && Catch::Contains("down_proj"));
  }
  CHECK_THROWS_WITH(parse_adapter_targets("q_proj,q_proj"), Catch::Contains("twice"));
}

ModelConfig model_config(bool biased) {
  ModelConfig config = test::tiny_config(11);
  config.hidden_size = 12;
  config.intermediate_size = 10;
  config.head_dim = 4;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.attention.qk_norm = !biased;
  config.attention.qkv_bias = config.attention.o_bias = config.mlp_bias = biased;
  return config;
}

// Adapters whose B is not zero, or the gradient of A would be.
Decoder adapted_decoder(const ModelConfig& config, const std::vector<std::string>& targets,
                        at::ScalarType dtype = at::kDouble) {
  Decoder decoder = test::random_decoder(config, dtype, 3, 0.4);
  Adapters& adapters = decoder.add_adapters({3, 6.0, targets});
  adapters.init_random(7);
  const at::NoGradGuard no_grad;
  at::manual_seed(5);
  adapters.unit().flat().add_(
      at::randn(adapters.unit().flat().sizes(), adapters.unit().flat().options()).mul_(0.2));
  return decoder;
}

struct Scored {
  at::Tensor loss;
  at::Tensor hidden;
};

Scored score(const Decoder& decoder, LocalAttention& attention) {
  at::manual_seed(11);
  const at::Tensor ids = at::randint(decoder.config().vocab_size, {8}, at::kLong);
  const at::Tensor hidden = decoder.forward(ids, test::packed_positions({5, 3}), attention);
  const TokenScores scores = decoder.score(hidden, ids.flip(0), at::full({8}, 0.9, at::kDouble));
  const at::Tensor weight = at::arange(1, 9, at::kDouble).cos();
  return {(scores.logprobs_n * weight + 0.3 * scores.entropy_n).sum(), hidden};
}

// The gradient of three elements of each factor against finite differences.
void check_gradients(Decoder& decoder, LocalAttention& attention) {
  const ParamUnit& unit = decoder.adapters()->unit();
  score(decoder, attention).loss.backward();
  const at::Tensor grad = unit.grad().clone();
  for (std::size_t p = 0; p < unit.specs().size(); ++p) {
    const at::Tensor values = unit.view(p), of_values = unit.layout().view_of(grad, p);
    for (const int64_t i : {int64_t{0}, values.numel() / 2, values.numel() - 1}) {
      INFO(unit.specs()[p].name << " element " << i);
      const auto loss = [&] { return score(decoder, attention).loss.item<double>(); };
      CHECK(of_values.view({-1})[i].item<double>() ==
            Approx(test::finite_difference(loss, values, i)).margin(1e-7).epsilon(1e-6));
    }
  }
}

TEST_CASE("adapters' gradients equal finite differences, with and without recomputation") {
  for (const auto& [biased, targets] :
       {std::pair{false, adapter_targets()}, {true, {"v_proj", "up_proj"}}}) {
    Decoder decoder = adapted_decoder(model_config(biased), targets);
    LocalAttention attention({5, 3});
    const ParamUnit& unit = decoder.adapters()->unit();
    check_gradients(decoder, attention);
    const at::Tensor grad = unit.grad().clone();
    for (ParamUnit* frozen : decoder.units()) {
      CHECK_FALSE(frozen->flat().requires_grad());
      CHECK_FALSE(frozen->flat().grad().defined());
    }
    decoder.adapters()->unit().zero_grad();
    decoder.set_activation_options({Recompute::kFull});
    score(decoder, attention).loss.backward();
    CHECK(at::equal(unit.grad(), grad));
    decoder.adapters()->unit().zero_grad();
    decoder.set_activation_options({Recompute::kFull, false, /*mlp_tile_tokens=*/3});
    score(decoder, attention).loss.backward();
    CHECK((unit.grad() - grad).abs().max().item<double>() < 1e-12);
  }
}

TEST_CASE("merged weights act as base and adapters do") {
  for (const bool biased : {false, true}) {
    Decoder adapted =
        adapted_decoder(model_config(biased), {"k_proj", "o_proj", "gate_proj", "down_proj"});
    Decoder merged(model_config(biased), at::kDouble);
    const at::NoGradGuard no_grad;
    for (std::size_t u = 0; u < merged.units().size(); ++u) {
      merged.units()[u]->flat().copy_(effective_values(adapted, u));
    }
    LocalAttention attention({5, 3});
    CHECK(max_abs_diff(score(merged, attention).hidden, score(adapted, attention).hidden) < 1e-12);
    const auto weights = adapted.materialize();  // for sampling
    at::manual_seed(11);
    const at::Tensor ids = at::randint(11, {8}, at::kLong);
    CHECK(max_abs_diff(adapted.forward(weights, ids, test::packed_positions({5, 3}), attention),
                       score(adapted, attention).hidden) < 1e-12);
  }
}

TEST_CASE("adapters of experts: gradients, and merged weights that act as base and adapters") {
  const std::vector<std::string> both{"o_proj", "experts.gate_up_proj", "experts.down_proj"};
  ModelConfig stacked = test::stacked_config(11);
  stacked.attention.sinks = false;
  stacked.blocks.clear();  // without windows
  for (const auto& [config, targets] :
       {std::pair{test::latent_config(11), std::vector<std::string>{"experts.down_proj"}},
        {test::latent_config(11), both},
        {stacked, both}}) {
    CAPTURE(config.model_type, targets);
    Decoder decoder = adapted_decoder(config, targets);
    LocalAttention attention({5, 3});
    check_gradients(decoder, attention);
    const at::Tensor grad = decoder.adapters()->unit().grad().clone();
    decoder.adapters()->unit().zero_grad();
    decoder.set_activation_options({Recompute::kFull});
    score(decoder, attention).loss.backward();
    CHECK(at::equal(decoder.adapters()->unit().grad(), grad));
    const at::NoGradGuard no_grad;
    Decoder merged(config, at::kDouble);
    for (std::size_t u = 0; u < merged.units().size(); ++u) {
      merged.units()[u]->flat().copy_(effective_values(decoder, u));
    }
    const at::Tensor expected = score(decoder, attention).hidden;
    CHECK(max_abs_diff(score(merged, attention).hidden, expected) < 1e-12);
    CHECK(max_abs_diff(score(*decoder.without_adapters(), attention).hidden, expected) > 1e-3);
    at::manual_seed(11);
    const at::Tensor ids = at::randint(11, {8}, at::kLong);
    CHECK(max_abs_diff(decoder.forward(decoder.materialize(), ids, test::packed_positions({5, 3}),
                                       attention),
                       expected) < 1e-12);
  }
}

TEST_CASE("a whole copy has the adapters merged, above a quantised base too") {
  for (const bool quantised : {false, true}) {
    WeightStorage storage;
    if (quantised) {
      storage.projections = QuantisedFormat::kNf4;
    }
    Decoder decoder =
        test::stored_as(test::random_decoder(model_config(false), at::kDouble, 3, 0.4), storage);
    decoder.add_adapters({2, 4.0, adapter_targets()}).init_random(1);
    const at::NoGradGuard no_grad;
    decoder.adapters()->unit().flat().normal_(0.0, 0.3);
    LocalAttention attention({5, 3});
    std::unique_ptr<Decoder> copy;
    export_weights(decoder, [&](UnitExport& units) { copy = whole_copy(units); });
    CHECK(max_abs_diff(score(*copy, attention).hidden, score(decoder, attention).hidden) < 1e-12);
  }
}

TEST_CASE("a model without its adapters is the base and shares its memory") {
  const ModelConfig config = model_config(false);
  const Decoder plain = test::random_decoder(config, at::kDouble, 3, 0.4);
  Decoder adapted = adapted_decoder(config, adapter_targets());
  LocalAttention attention({5, 3});
  const auto base = adapted.without_adapters();
  const at::Tensor expected = score(plain, attention).hidden;
  CHECK(at::equal(score(*base, attention).hidden, expected));
  CHECK(max_abs_diff(score(adapted, attention).hidden, expected) > 1e-3);
  CHECK(base->units()[1]->flat().data_ptr() == adapted.units()[1]->flat().data_ptr());
  CHECK(base->adapters() == nullptr);

  // A fresh adapter changes nothing.
  Decoder fresh = test::random_decoder(config, at::kDouble, 3, 0.4);
  fresh.add_adapters({2, 4.0, adapter_targets()}).init_random(1);
  CHECK(at::equal(score(fresh, attention).hidden, expected));
  const ParamUnit& unit = fresh.adapters()->unit();
  CHECK(unit.view(0).abs().max().item<double>() < 1 / std::sqrt(12.0));
  CHECK(unit.view(0).abs().max().item<double>() > 0.5 / std::sqrt(12.0));
}

TEST_CASE("the base of a bf16 model is held in bf16, its adapters in fp32") {
  const Decoder decoder = adapted_decoder(model_config(false), adapter_targets(), at::kBFloat16);
  CHECK(decoder.units()[1]->flat().scalar_type() == at::kBFloat16);
  CHECK(decoder.adapters()->unit().flat().scalar_type() == at::kFloat);
  // Merged in fp32: the sum is not rounded.
  const at::Tensor merged = effective_values(decoder, 1);
  CHECK(merged.scalar_type() == at::kFloat);
  const at::Tensor added = merged - decoder.units()[1]->flat().to(at::kFloat);
  const ParamUnit& unit = decoder.adapters()->unit();
  const at::Tensor expected =
      unit.view(3).mm(unit.view(0)).mul(2.0);  // B A of q_proj, alpha / rank
  CHECK(max_abs_diff(added.narrow(0, 0, expected.numel()).view(expected.sizes()), expected) < 1e-6);
}

}  // namespace
}  // namespace ringside::engine
