// Replayed routes: weights follow the current router, a forward's own routes give its own bits, and
// a recomputed layer uses the experts of its first run.
#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "engine/models/decoder.h"
#include "engine/nn/expert_pass.h"
#include "engine/nn/router.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/grad_check.h"
#include "tests/support/local_attention.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

constexpr int64_t kRoutedExperts = 6, kRoutedPerToken = 2;

// Three layers, of which the middle one has an MLP.
ModelConfig config_with_experts() {
  ModelConfig config = test::tiny_config();
  config.num_hidden_layers = 3;
  config.experts = {.count = kRoutedExperts,
                    .per_token = kRoutedPerToken,
                    .intermediate_size = 12,
                    .normalise_weights = true};
  config.blocks = {{.channel_mixer = ChannelMixerKind::kExperts},
                   {.channel_mixer = ChannelMixerKind::kMlp},
                   {.channel_mixer = ChannelMixerKind::kExperts}};
  return config;
}

struct Tokens {
  std::vector<int64_t> lengths{7, 5};
  at::Tensor ids = at::randint(19, {12}, at::kLong);
  at::Tensor positions = test::packed_positions(lengths);
};

at::Tensor forward(const Decoder& decoder, const Tokens& tokens, ExpertNotes& routes) {
  test::LocalAttention attention(tokens.lengths);
  return decoder.forward(tokens.ids, tokens.positions, attention, &routes);
}

Decoder decoder_of(const ModelConfig& config, at::ScalarType dtype, bool packs_for_sampling) {
  ComputeContext context(dtype);
  context.products.packs_for_sampling = packs_for_sampling;
  Decoder decoder(config, context);
  decoder.init_random(5, 0.2);
  return decoder;
}

// A forward without autograd, as generation runs it.
at::Tensor sample(const Decoder& decoder, const Tokens& tokens, ExpertNotes& routes) {
  test::LocalAttention attention(tokens.lengths);
  return decoder.forward(decoder.materialize(), tokens.ids, tokens.positions, attention, &routes);
}

ExpertNotes replaying(const at::Tensor& routes_sLK) { return {.replayed_sLK = routes_sLK}; }

TEST_CASE("routes: replayed experts are weighed by the current logits", "[routes]") {
  at::manual_seed(1);
  const at::Tensor logits = at::randn({5, kRoutedExperts}, at::kDouble);
  const at::Tensor given = at::tensor({0, 1, 2, 3, 4, 5, 5, 0, 3, 1}, at::kLong).view({5, 1, 2});
  ExpertNotes forward = replaying(given.to(at::kByte));
  for (const bool normalise : {false, true}) {
    const Routes routes =
        route_by_softmax(logits, kRoutedPerToken, normalise, false, {.notes = &forward});
    CHECK(routes.expert_sK.equal(given.select(1, 0)));
    at::Tensor expected = at::softmax(logits, 1).gather(1, given.select(1, 0));
    expected = normalise ? expected / expected.sum(1, true) : expected;
    CHECK(routes.weight_sK.equal(expected));
  }
  const Routes own = route_by_softmax(logits, kRoutedPerToken, true);
  int64_t changed = 0;
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t k = 0; k < kRoutedPerToken; ++k) {
      const at::Tensor id = given.select(1, 0)[t][k];
      changed += own.expert_sK[t].eq(id).any().item<bool>() ? 0 : 1;
    }
  }
  REQUIRE(changed > 0);
  CHECK(forward.changed.item<double>() == static_cast<double>(2 * changed));  // two calls
  ExpertNotes misshapen = replaying(given.narrow(0, 0, 4));
  CHECK_THROWS_WITH(route_by_softmax(logits, kRoutedPerToken, true, false, {.notes = &misshapen}),
                    Catch::Contains("replayed routes [4, 1, 2]"));
}

TEST_CASE("routes: the router's gradient under replay is that of finite differences", "[routes]") {
  at::manual_seed(2);
  const at::Tensor logits = at::randn({4, kRoutedExperts}, at::kDouble).set_requires_grad(true);
  const at::Tensor given = at::tensor({0, 1, 2, 3, 4, 5, 5, 0}, at::kLong).view({4, 1, 2});
  const at::Tensor weight = at::randn({4, kRoutedPerToken}, at::kDouble);
  for (const bool normalise : {false, true}) {
    const auto loss = [&] {
      ExpertNotes forward = replaying(given);
      return (route_by_softmax(logits, kRoutedPerToken, normalise, false, {.notes = &forward})
                  .weight_sK *
              weight)
          .sum();
    };
    CHECK(test::worst_gradient_error(loss, {logits}) < 1e-9);
    CHECK(logits.grad().abs().max().item<double>() > 1e-3);
  }
}

TEST_CASE("routes: own routes give the same bits, others another result", "[routes]") {
  at::manual_seed(3);
  const RouterKind router = GENERATE(RouterKind::kSoftmax, RouterKind::kSigmoid);
  ModelConfig config = config_with_experts();
  config.experts.router = router;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    CAPTURE(router, dtype);
    const Decoder decoder = decoder_of(config, dtype, false);
    const Tokens tokens;
    ExpertNotes recording{.records = true};
    const at::Tensor hidden = forward(decoder, tokens, recording);
    const at::Tensor used = recording.recorded_sLK();
    REQUIRE(used.sizes() == at::IntArrayRef({12, 2, kRoutedPerToken}));
    REQUIRE(used.scalar_type() == at::kByte);
    CHECK_FALSE(recording.changed.defined());

    ExpertNotes own = replaying(used);
    CHECK(forward(decoder, tokens, own).equal(hidden));
    CHECK(own.changed.item<double>() == 0.0);
    ExpertNotes others = replaying((used + 1).remainder(kRoutedExperts));
    CHECK_FALSE(forward(decoder, tokens, others).equal(hidden));
    CHECK(others.changed.item<double>() > 0.0);

    // Without autograd, by the same kernels.
    ExpertNotes again{.replayed_sLK = used, .records = true};
    CHECK(sample(decoder, tokens, again).equal(hidden));
    CHECK(again.recorded_sLK().equal(used));
    // With weights that are packed for sampling. Their kernel may round otherwise than that of
    // training, so that the forward to compare with is one of its own.
    const Decoder packed = decoder_of(config, dtype, true);
    ExpertNotes sampling{.records = true};
    const at::Tensor sampled = sample(packed, tokens, sampling);
    ExpertNotes sampled_again{.replayed_sLK = sampling.recorded_sLK(), .records = true};
    CHECK(sample(packed, tokens, sampled_again).equal(sampled));
    CHECK(sampled_again.recorded_sLK().equal(sampling.recorded_sLK()));
  }
}

// Another result in every call, as flash attention may give one in the second run of a layer.
class UnsteadyAttention final : public AttentionBackend {
 public:
  explicit UnsteadyAttention(std::vector<int64_t> lengths) : exact_(std::move(lengths)) {}
  at::Tensor attend(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v) override {
    return exact_.attend(spec, q, k, v) + static_cast<double>(calls_++ / 3);
  }

 private:
  test::LocalAttention exact_;
  int64_t calls_ = 0;
};

// The gradient of each matrix of a layer's experts, by name.
std::map<std::string, at::Tensor> gradients_of_experts(Decoder& decoder, int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
  std::map<std::string, at::Tensor> found;
  for (const ParamUnit* unit : decoder.units()) {
    for (const NamedSlice& slice : unit->storage().slices_of(unit->grad())) {
      if (slice.name.starts_with(prefix)) {
        found[slice.name] = slice.values;
      }
    }
  }
  REQUIRE(found.size() == 3 * kRoutedExperts);
  return found;
}

int64_t expert_of(const std::string& name) {
  const std::string mark = ".experts.";
  return std::stoll(name.substr(name.find(mark) + mark.size()));
}

// An expert that no token used in the forward has no gradient, whatever the second run would
// choose.
TEST_CASE("routes: a recomputed layer keeps the experts of its first run", "[routes]") {
  at::manual_seed(4);
  for (const bool replayed : {false, true}) {
    Decoder decoder = test::random_decoder(config_with_experts(), at::kDouble, 6);
    ActivationOptions options;
    options.recompute = Recompute::kFull;
    decoder.set_activation_options(options);
    const Tokens tokens;
    // Experts 4 and 5 are not among the replayed ones.
    const at::Tensor given =
        at::stack({at::arange(12).remainder(2), at::arange(12).remainder(2) + 2}, 1)
            .unsqueeze(1)
            .expand({12, 2, 2});
    ExpertNotes routes{.replayed_sLK = replayed ? given : at::Tensor(), .records = true};
    UnsteadyAttention attention(tokens.lengths);
    decoder.forward(tokens.ids, tokens.positions, attention, &routes).pow(2).sum().backward();
    REQUIRE(routes.recorded_sK.size() == 2);  // of the first runs alone
    for (const int64_t layer : {0, 2}) {
      const at::Tensor used = routes.recorded_sK[layer / 2];
      int64_t unused = 0;
      for (const auto& [name, grad] : gradients_of_experts(decoder, layer)) {
        INFO(name);
        const bool is_used = used.eq(expert_of(name)).any().item<bool>();
        unused += is_used ? 0 : 1;
        CHECK((grad.abs().max().item<double>() > 0) == is_used);
      }
      CHECK((unused > 0 || !replayed));
    }
  }
}

TEST_CASE("routes: ids take one byte up to 256 experts, else two", "[routes]") {
  CHECK(route_dtype(256) == at::kByte);
  CHECK(route_dtype(257) == at::kShort);
  // The last expert of 257 does not fit one byte.
  const at::Tensor logits = at::zeros({1, 257}).index_fill(1, at::tensor({256, 3}, at::kLong), 1.0);
  ExpertNotes recording{.records = true};
  const Routes routes = route_by_softmax(logits, 2, true, false, {.notes = &recording});
  CHECK(routes.expert_sK.max().item<int64_t>() == 256);
  CHECK(recording.recorded_sLK().scalar_type() == at::kShort);
}

}  // namespace
}  // namespace ringside::engine
