// Latent attention against a plain implementation that turns each pair of components by itself.
#include "engine/layers/latent_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/local_attention.h"

namespace ringside::engine {
namespace {

using test::LocalAttention;
using test::max_abs_diff;
using test::packed_positions;

const std::vector<int64_t> kLengths{5, 1, 7};

ModelConfig latent_config() {
  ModelConfig config;
  config.hidden_size = 10;
  config.num_attention_heads = config.num_key_value_heads = 3;
  config.latent = {.q_rank = 7, .kv_rank = 5, .nope_dim = 6, .rope_dim = 4, .value_dim = 8};
  config.head_dim = 10;
  config.max_position_embeddings = 64;
  return config;
}

struct Case {
  const char* name;
  ModelConfig config;
};

std::vector<Case> cases() {
  std::vector<Case> all{{"as released", latent_config()}};
  all.push_back({"queries without a latent", latent_config()});
  all.back().config.latent.q_rank = 0;
  all.push_back({"halves of a head turn together, biases", latent_config()});
  all.back().config.latent.rope_interleaved = false;
  all.back().config.latent.bias = true;
  all.push_back({"values as long as queries, YaRN", latent_config()});
  all.back().config.latent.value_dim = 10;
  YarnRope yarn;
  yarn.factor = 4.0;
  yarn.original_max_position_embeddings = 16;
  yarn.mscale = 1.0;
  yarn.mscale_all_dim = 0.7;
  all.back().config.rope_scaling = yarn;
  return all;
}

// Leaves of a layer's latent attention, drawn at random; norms around 1.
std::vector<Weight> random_weights(const ParamTable& table) {
  std::vector<Weight> weights;
  for (const WeightSpec& spec : table.weights()) {
    const at::Tensor noise = 0.5 * at::randn(spec.shape, at::kDouble);
    const bool is_norm = spec.params[0].name.find("norm") != std::string::npos;
    weights.emplace_back((is_norm ? noise + 1 : noise).set_requires_grad(true));
  }
  return weights;
}

at::Tensor plain_norm(const at::Tensor& x, const Weight& weight) {
  return x / (x.square().mean(-1, /*keepdim=*/true) + 1e-6).sqrt() * weight.value;
}

at::Tensor plain_linear(const at::Tensor& x, const Weight& weight, const Weight& bias) {
  const at::Tensor y = x.mm(weight.value.t());
  return bias.defined() ? y + bias.value : y;
}

// Pair i of the components of x [s, R], turned by the angles of `rope`. The pairs of the result lie
// side by side.
at::Tensor turn(const at::Tensor& x, const RopeTables& rope, bool interleaved) {
  const int64_t pairs = x.size(1) / 2;
  std::vector<at::Tensor> columns;
  for (int64_t i = 0; i < pairs; ++i) {
    const at::Tensor a = x.select(1, interleaved ? 2 * i : i);
    const at::Tensor b = x.select(1, interleaved ? 2 * i + 1 : i + pairs);
    const at::Tensor c = rope.cos_s1d.select(2, i).squeeze(1);
    const at::Tensor s = rope.sin_s1d.select(2, i).squeeze(1);
    columns.push_back(a * c - b * s);
    columns.push_back(b * c + a * s);
  }
  return at::stack(columns, 1);
}

at::Tensor plain_softmax(const at::Tensor& scores, const std::vector<int64_t>& lengths) {
  at::Tensor mask = at::full(scores.sizes(), -INFINITY, at::kDouble);
  int64_t begin = 0;
  for (const int64_t n : lengths) {
    const at::Tensor own = mask.narrow(0, begin, n).narrow(1, begin, n);
    own.copy_(at::triu(at::full({n, n}, -INFINITY, at::kDouble), 1));
    begin += n;
  }
  return at::softmax(scores + mask, 1);
}

double plain_scale(const ModelConfig& config) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  if (!std::holds_alternative<YarnRope>(config.rope_scaling)) {
    return scale;
  }
  return scale * std::pow(0.1 * 0.7 * std::log(4.0) + 1.0, 2);
}

// One head after another, with scores as a matrix.
at::Tensor plain_attention(const ModelConfig& config, const ParamTable& table,
                           const std::vector<Weight>& weights, const at::Tensor& x,
                           const RopeTables& rope) {
  const auto w = [&](const std::string& name) { return weights[table.slot("self_attn." + name)]; };
  const auto bias = [&](const std::string& module) {
    return config.latent.bias ? w(module + ".bias") : Weight();
  };
  const LatentAttentionConfig& latent = config.latent;
  const int64_t n = latent.nope_dim, r = latent.rope_dim, v = latent.value_dim;
  const bool has_latent = latent.q_rank > 0;
  const at::Tensor q_in = has_latent
                              ? plain_norm(plain_linear(x, w("q_a_proj.weight"), bias("q_a_proj")),
                                           w("q_a_layernorm.weight"))
                              : x;
  const at::Tensor q = q_in.mm(w(has_latent ? "q_b_proj.weight" : "q_proj.weight").value.t());
  const at::Tensor a = plain_linear(x, w("kv_a_proj_with_mqa.weight"), bias("kv_a_proj_with_mqa"));
  const at::Tensor kv = plain_norm(a.narrow(1, 0, latent.kv_rank), w("kv_a_layernorm.weight"))
                            .mm(w("kv_b_proj.weight").value.t());
  const at::Tensor k_rope = turn(a.narrow(1, latent.kv_rank, r), rope, latent.rope_interleaved);
  std::vector<at::Tensor> outs;
  for (int64_t h = 0; h < config.num_attention_heads; ++h) {
    const at::Tensor q_h = q.narrow(1, h * (n + r), n + r), kv_h = kv.narrow(1, h * (n + v), n + v);
    const at::Tensor scores =
        q_h.narrow(1, 0, n).mm(kv_h.narrow(1, 0, n).t()) +
        turn(q_h.narrow(1, n, r), rope, latent.rope_interleaved).mm(k_rope.t());
    outs.push_back(plain_softmax(scores * plain_scale(config), kLengths).mm(kv_h.narrow(1, n, v)));
  }
  return plain_linear(at::cat(outs, 1), w("o_proj.weight"), bias("o_proj"));
}

// The mixer of layer 3, with weights and an input.
struct Problem {
  const ModelConfig& config;
  ParamTable table;
  LatentAttention mixer;
  std::vector<Weight> weights;
  at::Tensor x, dy;
  RopeTables rope;

  explicit Problem(const ModelConfig& of) : config(of), mixer(config, /*layer=*/3, table) {
    at::manual_seed(17);
    weights = random_weights(table);
    x = at::randn({13, config.hidden_size}, at::kDouble).set_requires_grad(true);
    dy = at::randn(x.sizes(), at::kDouble);
    rope = rope_tables(rope_frequencies(config.rope()), packed_positions(kLengths), at::kDouble);
  }

  at::Tensor forward(AttentionBackend& attention) const {
    return mixer.forward(x, {weights, {rope}, attention});
  }

  at::Tensor expected(const std::vector<Weight>& with) const {
    return plain_attention(config, table, with, x, rope);
  }

  std::vector<at::Tensor> gradients(const at::Tensor& out) const {
    std::vector<at::Tensor> leaves{x};
    for (const Weight& weight : weights) {
      leaves.push_back(weight.leaf);
    }
    for (const at::Tensor& leaf : leaves) {
      leaf.mutable_grad().reset();
    }
    out.backward(dy);
    std::vector<at::Tensor> grads;
    for (const at::Tensor& leaf : leaves) {
      grads.push_back(leaf.grad().clone());
    }
    return grads;
  }
};

TEST_CASE("latent attention is the plain formula, with its gradients") {
  for (const auto& [name, config] : cases()) {
    CAPTURE(name);
    const Problem problem(config);
    LocalAttention attention(kLengths);
    const at::Tensor out = problem.forward(attention);
    const at::Tensor expected = problem.expected(problem.weights);
    CHECK(attention.layers() == std::vector<int64_t>{3});
    CHECK(max_abs_diff(out, expected) <= 1e-12);
    const auto found = problem.gradients(out);
    const auto wanted = problem.gradients(expected);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      CAPTURE(i);
      CHECK(wanted[i].abs().max().item<double>() > 1e-3);
      CHECK(max_abs_diff(found[i], wanted[i]) <= 1e-11);
    }
  }
}

// Attention on latents: one key/value head, which is its own value.
class AttendsLatents final : public AttentionBackend {
 public:
  AttendsLatents(double scale, int64_t components) : scale_(scale), components_(components) {}
  bool attends_latents() const override { return true; }
  at::Tensor attend(const AttentionSpec& spec, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                    const at::Tensor& v_sKD) override {
    CHECK(k_sKD.sizes() == at::IntArrayRef({q_sHD.size(0), 1, components_}));
    CHECK(v_sKD.is_same(k_sKD));
    const at::Tensor rows = k_sKD.squeeze(1);
    std::vector<at::Tensor> outs;
    for (int64_t h = 0; h < q_sHD.size(1); ++h) {
      const at::Tensor scores = q_sHD.select(1, h).mm(rows.t()) * spec.softmax_scale;
      outs.push_back(plain_softmax(scores, kLengths).mm(rows));
    }
    return at::stack(outs, 1);
  }

 private:
  double scale_;
  int64_t components_;
};

TEST_CASE("latents attend as the heads that follow from them") {
  for (const auto& [name, config] : cases()) {
    CAPTURE(name);
    const Problem problem(config);
    AttendsLatents attention(1.0 / std::sqrt(static_cast<double>(config.head_dim)),
                             config.latent.kv_rank + config.latent.rope_dim);
    const at::Tensor out = problem.forward(attention);
    const at::Tensor expected = problem.expected(problem.weights);
    CHECK(max_abs_diff(out, expected) <= 1e-12);
  }
}

TEST_CASE("latents attend with the adapters of their projections") {
  const ModelConfig config = latent_config();
  Problem problem(config);
  auto low_rank = std::make_shared<LowRank>();
  const Slot kv_b = problem.table.slot("self_attn.kv_b_proj.weight");
  const at::Tensor matrix = problem.weights[kv_b].value.detach();
  low_rank->a = low_rank->a_leaf = at::randn({2, config.latent.kv_rank}, at::kDouble);
  const at::Tensor b = at::randn({matrix.size(0), 2}, at::kDouble);
  low_rank->parts.push_back({0, b, b});
  low_rank->scale = 0.5;
  const at::NoGradGuard no_grad;
  std::vector<Weight> merged = problem.weights;
  merged[kv_b] = Weight(matrix + 0.5 * b.mm(low_rank->a));
  problem.weights[kv_b] = Weight(matrix);
  problem.weights[kv_b].low_rank = low_rank;
  AttendsLatents latents(1.0 / std::sqrt(static_cast<double>(config.head_dim)), 9);
  LocalAttention heads(kLengths);
  const at::Tensor expected = problem.expected(merged);
  for (AttentionBackend* attention :
       {static_cast<AttentionBackend*>(&latents), static_cast<AttentionBackend*>(&heads)}) {
    CHECK(max_abs_diff(problem.forward(*attention), expected) <= 1e-12);
  }
}

}  // namespace
}  // namespace ringside::engine
