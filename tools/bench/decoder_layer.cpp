// Bench of one decoder layer, forward and backward, and of the chunked token scores, on one thread.
// The shape is that of a layer of Qwen3-0.6B; the document has 512 tokens.
#include "engine/layers/decoder_layer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>

#include "engine/ops/token_scores.h"

namespace {

using namespace ringside::engine;

constexpr int64_t kTokens = 512;

// Attention inside one document by ATen's own kernel.
class OneDocument final : public AttentionBackend {
 public:
  at::Tensor attend(const AttentionSpec& /*spec*/, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                    const at::Tensor& v_sKD) override {
    const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
    return at::scaled_dot_product_attention(heads_first(q_sHD), heads_first(k_sKD),
                                            heads_first(v_sKD), std::nullopt, 0.0,
                                            /*is_causal=*/true, std::nullopt, /*enable_gqa=*/true)
        .squeeze(0)
        .transpose(0, 1);
  }
};

ModelConfig layer_config() {
  ModelConfig config;
  config.hidden_size = 1024;
  config.intermediate_size = 3072;
  config.num_attention_heads = 16;
  config.num_key_value_heads = 8;
  config.head_dim = 128;
  config.attention.qk_norm = true;
  return config;
}

void layer_forward_and_backward(benchmark::State& state) {
  at::set_num_threads(1);
  at::manual_seed(1);
  const auto dtype = static_cast<at::ScalarType>(state.range(0));
  const ModelConfig config = layer_config();
  const DecoderLayer layer(config, 0);
  ParamUnit unit("layer", layer.specs(), dtype);
  {
    const at::NoGradGuard no_grad;
    unit.flat().copy_(at::randn(unit.flat().sizes()).mul_(0.02));
  }
  const RopeTables rope = rope_tables(rope_frequencies(config.rope()), at::arange(kTokens), dtype);
  const at::Tensor hidden =
      at::randn({kTokens, config.hidden_size}).to(dtype).set_requires_grad(true);
  const at::Tensor d_out = at::randn(hidden.sizes()).to(dtype);
  OneDocument attention;
  for (auto _ : state) {
    unit.zero_grad();
    hidden.mutable_grad().reset();
    const auto weights =
        layer.weights_of(unit.gathered().materialize(layer.unit_shapes(dtype).front()));
    layer.forward(hidden, {weights, {rope}, attention}).backward(d_out);
  }
}
BENCHMARK(layer_forward_and_backward)
    ->Arg(static_cast<int64_t>(at::kFloat))
    ->Arg(static_cast<int64_t>(at::kBFloat16))
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void scores_forward_and_backward(benchmark::State& state) {
  at::set_num_threads(1);
  at::manual_seed(2);
  constexpr int64_t kVocab = 32768;
  const auto dtype = static_cast<at::ScalarType>(state.range(0));
  const at::Tensor hidden = at::randn({kTokens, 256}).to(dtype).set_requires_grad(true);
  const at::Tensor head = at::randn({kVocab, 256}).mul_(0.1).to(dtype).set_requires_grad(true);
  const at::Tensor targets = at::randint(kVocab, {kTokens}, at::kLong);
  const at::Tensor temperature = at::ones({kTokens});
  for (auto _ : state) {
    hidden.mutable_grad().reset();
    head.mutable_grad().reset();
    token_scores(hidden, head, targets, temperature, 128).logprobs_n.sum().backward();
  }
}
BENCHMARK(scores_forward_and_backward)
    ->Arg(static_cast<int64_t>(at::kFloat))
    ->Arg(static_cast<int64_t>(at::kBFloat16))
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
