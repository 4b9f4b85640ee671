// Guards the number of kernels of a decoder layer and of the scores: on an accelerator, small
// tensors cost their launches. Each operator of ours counts as one kernel; each case prints what it
// counted.
#include "tests/support/kernel_count.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <iostream>

#include "engine/layers/decoder_layer.h"
#include "engine/ops/token_scores.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

constexpr int64_t kCountedTokens = 12;

// Attention inside one document: one operator forward, one backward.
class OneDocument final : public AttentionBackend {
 public:
  at::Tensor attend(const AttentionSpec& spec, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                    const at::Tensor& v_sKD) override {
    const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
    const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        heads_first(q_sHD), heads_first(k_sKD), heads_first(v_sKD), /*dropout_p=*/0.0,
        /*is_causal=*/true, /*attn_mask=*/{}, spec.softmax_scale);
    return out.squeeze(0).transpose(0, 1);
  }
};

struct Counts {
  int64_t forward = 0;
  int64_t backward = 0;
};

void print(const char* what, const test::KernelCount& count) {
  std::cout << what << ": " << count.total() << " kernels (";
  for (const auto& [name, n] : count.kernels()) {
    std::cout << " " << name << " " << n;
  }
  std::cout << " )\n";
}

// Kernels of one layer as the decoder runs it: weights from the flat buffer, and its gradient.
Counts count_layer(const ModelConfig& config, at::ScalarType dtype) {
  const DecoderLayer layer(config, 0);
  ParamUnit unit("layer", layer.specs(), dtype);
  {
    const at::NoGradGuard no_grad;
    unit.flat().copy_(at::randn(unit.flat().sizes()).mul_(0.1));
  }
  const RopeTables rope =
      rope_tables(rope_frequencies(config.rope()), at::arange(kCountedTokens), dtype);
  const at::Tensor hidden =
      at::randn({kCountedTokens, config.hidden_size}).to(dtype).set_requires_grad(true);
  OneDocument attention;
  at::Tensor out;
  Counts counts;
  {
    const test::KernelCount count;
    const auto weights =
        layer.weights_of(unit.gathered().materialize(layer.unit_shapes(dtype).front()));
    out = layer.forward(hidden, {weights, {rope}, attention});
    counts.forward = count.total();
    print("layer forward", count);
  }
  const at::Tensor d_out = at::randn(out.sizes()).to(dtype);
  const test::KernelCount count;
  out.backward(d_out);
  counts.backward = count.total();
  print("layer backward", count);
  return counts;
}

// Kernels of scoring four chunks of rows.
Counts count_scores(at::ScalarType dtype) {
  const at::Tensor hidden = at::randn({32, 16}).to(dtype).set_requires_grad(true);
  const at::Tensor head = at::randn({50, 16}).to(dtype).set_requires_grad(true);
  const at::Tensor targets = at::randint(50, {32}, at::kLong), temperature = at::ones({32});
  TokenScores scores;
  Counts counts;
  {
    const test::KernelCount count;
    scores = token_scores(hidden, head, targets, temperature, 8);
    counts.forward = count.total();
    print("scores forward", count);
  }
  const at::Tensor loss = scores.logprobs_n.sum() + scores.entropy_n.sum();
  const test::KernelCount count;
  loss.backward();
  counts.backward = count.total();
  print("scores backward", count);
  return counts;
}

ModelConfig qwen2_config() {
  ModelConfig config = test::tiny_config();
  config.attention.qk_norm = false;
  config.attention.qkv_bias = true;
  return config;
}

// `before`: what the same code counted when norms, rotation, activation and scores were made of
// ATen's operators.
void check_at_most_60_percent(const Counts& now, const Counts& before) {
  CAPTURE(now.forward, now.backward, before.forward, before.backward);
  CHECK(now.forward > 0);
  CHECK(now.backward > 0);
  CHECK(10 * (now.forward + now.backward) <= 6 * (before.forward + before.backward));
}

TEST_CASE("a layer launches at most 60 % of the kernels that ATen's operators take") {
  check_at_most_60_percent(count_layer(test::tiny_config(), at::kBFloat16), {42, 67});
  check_at_most_60_percent(count_layer(test::tiny_config(), at::kFloat), {35, 51});
  check_at_most_60_percent(count_layer(qwen2_config(), at::kBFloat16), {32, 52});
}

TEST_CASE("the scores of four chunks launch at most 60 % of the kernels that ATen's take") {
  check_at_most_60_percent(count_scores(at::kBFloat16), {44, 65});
  check_at_most_60_percent(count_scores(at::kFloat), {40, 52});
}

}  // namespace
}  // namespace ringside::engine
