// Guards the whole decoder: its gradient in the flat buffers, documents leaking into each other
// when packed, grouped heads, and activation checkpointing that loses or doubles a gradient.
#include "engine/models/decoder.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/grad_check.h"
#include "tests/support/local_attention.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

using test::LocalAttention;
using test::max_abs_diff;
using test::packed_positions;

// Smaller still, for finite differences of every parameter.
ModelConfig tiny_config(int64_t heads, int64_t kv_heads) {
  ModelConfig config = test::tiny_config(11);
  config.hidden_size = 12;
  config.intermediate_size = 10;
  config.head_dim = 4;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  return config;
}

// The same model with every optional parameter there is.
ModelConfig biased_config() {
  ModelConfig config = tiny_config(4, 2);
  config.attention.qk_norm = false;
  config.attention.qkv_bias = config.attention.o_bias = config.mlp_bias = true;
  config.tie_word_embeddings = true;
  return config;
}

Decoder random_decoder(const ModelConfig& config, at::ScalarType dtype = at::kDouble) {
  Decoder decoder = test::random_decoder(config, dtype, 3, 0.4);
  // Biases and norms away from their neutral values, or an error in them would not show.
  const at::NoGradGuard no_grad;
  at::manual_seed(5);
  for (ParamUnit* unit : decoder.units()) {
    unit->flat().add_(at::randn(unit->flat().sizes(), unit->flat().options()).mul_(0.1));
  }
  return decoder;
}

struct Batch {
  std::vector<int64_t> lengths;
  at::Tensor ids, positions, targets, temperature;
};

Batch make_batch(const std::vector<int64_t>& lengths, int64_t vocab) {
  at::manual_seed(11);
  const at::Tensor positions = packed_positions(lengths);
  const int64_t s = positions.size(0);
  return {lengths, at::randint(vocab, {s}, at::kLong), positions,
          at::randint(vocab, {s}, at::kLong), at::rand({s}, at::kDouble) + 0.5};
}

at::Tensor loss_of(const Decoder& decoder, const Batch& batch, LocalAttention& attention) {
  const at::Tensor hidden = decoder.forward(batch.ids, batch.positions, attention);
  const TokenScores scores = decoder.score(hidden, batch.targets, batch.temperature);
  const at::Tensor weight = at::arange(1, batch.ids.size(0) + 1, at::kDouble).cos();
  return (scores.logprobs_n * weight + 0.3 * scores.entropy_n).sum();
}

std::vector<at::Tensor> gradients(Decoder& decoder, const Batch& batch, LocalAttention& attention) {
  for (ParamUnit* unit : decoder.units()) {
    unit->zero_grad();
  }
  loss_of(decoder, batch, attention).backward();
  std::vector<at::Tensor> grads;
  for (const ParamUnit* unit : decoder.units()) {
    grads.push_back(unit->grad().clone());
  }
  return grads;
}

void check_gradients_by_finite_differences(const ModelConfig& config) {
  Decoder decoder = random_decoder(config);
  const Batch batch = make_batch({5, 3}, config.vocab_size);
  LocalAttention attention(batch.lengths);
  const auto loss = [&] { return loss_of(decoder, batch, attention).item<double>(); };
  const std::vector<at::Tensor> grads = gradients(decoder, batch, attention);
  const auto units = decoder.units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (std::size_t p = 0; p < units[u]->specs().size(); ++p) {
      const at::Tensor values = units[u]->view(p), grad = units[u]->layout().view_of(grads[u], p);
      for (const int64_t i : {int64_t{0}, values.numel() / 2, values.numel() - 1}) {
        INFO(units[u]->specs()[p].name << " element " << i);
        CHECK(grad.view({-1})[i].item<double>() ==
              Approx(test::finite_difference(loss, values, i)).margin(1e-7).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("random weights drawn in pieces are those of one draw") {
  ModelConfig config = test::tiny_config(/*vocab_size=*/200003);  // about 3.2 million elements
  config.num_hidden_layers = 1;
  const Decoder decoder = test::random_decoder(config, at::kDouble, 11, 0.02);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(11);
  const at::Tensor embedding =
      at::normal(0.0, 0.02, {200003, config.hidden_size}, generator, at::kDouble);
  REQUIRE(embedding.numel() > 2 << 20);
  CHECK(at::equal(decoder.units()[0]->view(0), embedding));
  // The generator goes on as after one draw.
  const ParamUnit& layer = *decoder.units()[1];
  std::size_t first = 0;  // matrix of the layer
  while (layer.specs()[first].shape.size() < 2) {
    ++first;
  }
  const at::Tensor next = at::normal(0.0, 0.02, layer.specs()[first].shape, generator, at::kDouble);
  CHECK(at::equal(layer.view(first), next));
}

TEST_CASE("every parameter's gradient equals finite differences") {
  for (const auto& [heads, kv_heads] : {std::pair{4, 2}, {6, 2}, {5, 5}}) {
    CAPTURE(heads, kv_heads);
    check_gradients_by_finite_differences(tiny_config(heads, kv_heads));
  }
  check_gradients_by_finite_differences(biased_config());
}

TEST_CASE("packed documents score as each does alone") {
  for (const auto& [heads, kv_heads] : {std::pair{4, 2}, {6, 2}, {5, 5}}) {
    const Decoder decoder = random_decoder(tiny_config(heads, kv_heads));
    const Batch batch = make_batch({4, 1, 7}, 11);
    LocalAttention packed(batch.lengths);
    const at::Tensor together = decoder.forward(batch.ids, batch.positions, packed);
    int64_t begin = 0;
    for (const int64_t n : batch.lengths) {
      LocalAttention alone({n});
      const at::Tensor hidden = decoder.forward(batch.ids.narrow(0, begin, n),
                                                batch.positions.narrow(0, begin, n), alone);
      CHECK(max_abs_diff(hidden, together.narrow(0, begin, n)) < 1e-12);
      begin += n;
    }
  }
}

TEST_CASE("recomputed activations give the same gradients, by attention calls in layer order") {
  for (const ModelConfig& config : {tiny_config(4, 2), biased_config()}) {
    Decoder decoder = random_decoder(config);
    const Batch batch = make_batch({6, 3}, config.vocab_size);
    LocalAttention plain(batch.lengths), recomputing(batch.lengths);
    const std::vector<at::Tensor> expected = gradients(decoder, batch, plain);
    decoder.set_activation_options({Recompute::kFull});
    const std::vector<at::Tensor> got = gradients(decoder, batch, recomputing);
    for (std::size_t u = 0; u < expected.size(); ++u) {
      CHECK(expected[u].abs().sum().item<double>() > 0);
      CHECK(max_abs_diff(got[u], expected[u]) == 0);
    }
    CHECK(recomputing.layers() == std::vector<int64_t>{0, 1, 1, 0});
  }
}

TEST_CASE("a rank without tokens runs forward and backward to gradients of zero") {
  for (const bool recompute : {false, true}) {
    Decoder decoder = random_decoder(tiny_config(4, 2));
    decoder.set_activation_options({recompute ? Recompute::kFull : Recompute::kNone});
    const Batch batch = make_batch({}, 11);
    LocalAttention attention({});
    for (const at::Tensor& grad : gradients(decoder, batch, attention)) {
      CHECK(grad.abs().sum().item<double>() == 0);
    }
    CHECK(attention.layers().size() == (recompute ? 4 : 2));
  }
}

TEST_CASE("bf16 computes in bf16 from fp32 masters and its gradients stay near") {
  const ModelConfig config = tiny_config(4, 2);
  Decoder exact = random_decoder(config, at::kFloat);
  Decoder rounded(config, at::kBFloat16);
  rounded.copy_parameters_from(exact);
  const Batch batch = make_batch({9}, config.vocab_size);
  LocalAttention attention(batch.lengths);
  CHECK(rounded.forward(batch.ids, batch.positions, attention).scalar_type() == at::kBFloat16);
  const auto expected = gradients(exact, batch, attention);
  const auto got = gradients(rounded, batch, attention);
  for (std::size_t u = 0; u < expected.size(); ++u) {
    CHECK(got[u].scalar_type() == at::kFloat);
    const double error = (got[u] - expected[u]).norm().item<double>();
    CHECK(error < 0.1 * expected[u].norm().item<double>());
  }
}

TEST_CASE("weights cut once give the same hidden states; logits agree with scores") {
  const Decoder decoder = random_decoder(biased_config());
  const Batch batch = make_batch({5}, 11);
  LocalAttention attention(batch.lengths);
  const at::Tensor hidden = decoder.forward(batch.ids, batch.positions, attention);
  CHECK(max_abs_diff(decoder.forward(decoder.materialize(), batch.ids, batch.positions, attention),
                     hidden) == 0);
  const at::Tensor logp = at::log_softmax(test::logits_of(decoder, hidden), 1);
  const TokenScores scores = decoder.score(hidden, batch.targets, at::ones({5}));
  CHECK(max_abs_diff(logp.gather(1, batch.targets.unsqueeze(1)).squeeze(1), scores.logprobs_n) <
        1e-13);
}

TEST_CASE("init_random depends on the seed alone") {
  const ModelConfig config = tiny_config(4, 2);
  Decoder a(config, at::kFloat), b(config, at::kDouble), c(config, at::kFloat);
  a.init_random(1, 0.02);
  b.init_random(1, 0.02);
  c.init_random(2, 0.02);
  const at::Tensor &fa = a.units()[1]->flat(), &fb = b.units()[1]->flat();
  CHECK(max_abs_diff(fa.detach(), fb.detach()) < 1e-8);
  CHECK(max_abs_diff(fa.detach(), c.units()[1]->flat().detach()) > 1e-3);
}

TEST_CASE("impossible shapes and inputs are refused") {
  ModelConfig config = tiny_config(4, 2);
  config.num_key_value_heads = 3;
  CHECK_THROWS_AS(Decoder(config, at::kFloat), c10::Error);
  config = tiny_config(4, 2);
  config.vocab_size = 0;
  CHECK_THROWS_AS(Decoder(config, at::kFloat), c10::Error);
  CHECK_THROWS_AS(Decoder(tiny_config(4, 2), at::kInt), c10::Error);
  const Decoder decoder = random_decoder(tiny_config(4, 2));
  LocalAttention attention({2});
  const at::Tensor ids = at::tensor({1, 11}, at::kLong), positions = at::arange(2, at::kLong);
  CHECK_THROWS_AS(decoder.forward(ids, positions, attention), c10::Error);
  CHECK_THROWS_AS(decoder.forward(ids, positions.narrow(0, 0, 1), attention), c10::Error);
  Decoder other(tiny_config(2, 2), at::kDouble);
  CHECK_THROWS_AS(other.copy_parameters_from(decoder), c10::Error);
}

}  // namespace
}  // namespace ringside::engine
