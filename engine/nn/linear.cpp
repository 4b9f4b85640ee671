#include "engine/nn/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "engine/nn/checks.h"
#include "engine/nn/operators.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

constexpr const char* kLeafDtype = "leaf_dtype";

OptionalTensor optional_part(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

at::ScalarType leaf_dtype(AutogradContext& ctx) {
  return static_cast<at::ScalarType>(ctx.saved_data[kLeafDtype].toInt());
}

// dy^T x in the leaf's dtype.
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::ScalarType dtype) {
  if (dtype == x.scalar_type()) {
    return dy.t().mm(x);
  }
  at::Tensor sum = at::zeros({dy.size(1), x.size(1)}, x.options().dtype(dtype));
  operators::add_transposed_mm(sum, dy, x);
  return sum;
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& weight_leaf, const OptionalTensor& bias,
                            const OptionalTensor& /*bias_leaf*/) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data[kLeafDtype] = static_cast<int64_t>(weight_leaf.scalar_type());
    ctx->saved_data["biased"] = bias.has_value();
    return bias ? at::addmm(*bias, x, weight.t()) : at::mm(x, weight.t());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dy = grads[0];
    const at::ScalarType dtype = leaf_dtype(*ctx);
    at::Tensor d_x, d_weight, d_bias;
    if (ctx->needs_input_grad(0)) {
      d_x = dy.mm(weight);
    }
    if (ctx->needs_input_grad(2)) {
      d_weight = weight_gradient(dy, x, dtype);
    }
    const bool biased = ctx->saved_data["biased"].toBool();
    if (biased && ctx->needs_input_grad(4)) {
      d_bias = dy.sum(0, /*keepdim=*/false, dtype);
    }
    return {d_x, at::Tensor(), d_weight, at::Tensor(), d_bias};
  }
};

// Tensors that LowRankLinear takes: x, the weight, A and its leaf; then B and its leaf of each
// part.
constexpr std::size_t kFactorA = 2, kFactorALeaf = 3, kFirstB = 4;

// A frozen weight and its low-rank additions. The products with A and B are small beside the one
// with the weight, which is computed once for all parts.
struct LowRankLinear : torch::autograd::Function<LowRankLinear> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList tensors,
                            const OptionalTensor& bias, const std::vector<int64_t>& rows,
                            double scale) {
    const at::Tensor &x = tensors[0], &weight = tensors[1];
    const at::Tensor y = bias ? at::addmm(*bias, x, weight.t()) : at::mm(x, weight.t());
    const at::Tensor scaled = at::mm(x, tensors[kFactorA].t()).mul_(scale);
    const std::vector<at::Tensor> inner = scaled.chunk(static_cast<int64_t>(rows.size()), 1);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const at::Tensor& b = tensors[kFirstB + 2 * i];
      y.narrow(1, rows[i], b.size(0)).addmm_(inner[i], b.t());
    }
    variable_list saved{x, weight, scaled, tensors[kFactorA]};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      saved.push_back(tensors[kFirstB + 2 * i]);
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["rows"] = rows;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data[kLeafDtype] = static_cast<int64_t>(tensors[kFactorALeaf].scalar_type());
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &a = saved[3], &dy = grads[0];
    const std::vector<int64_t> rows = ctx->saved_data["rows"].toIntVector();
    const auto parts = static_cast<int64_t>(rows.size());
    const at::ScalarType dtype = leaf_dtype(*ctx);
    const std::vector<at::Tensor> inner = saved[2].chunk(parts, 1);
    const at::Tensor d_inner = at::empty_like(saved[2]);
    std::vector<at::Tensor> d_parts = d_inner.chunk(parts, 1);
    variable_list results(kFirstB + 2 * rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const at::Tensor& b = saved[4 + i];
      const at::Tensor dy_part = dy.narrow(1, rows[i], b.size(0));
      at::mm_out(d_parts[i], dy_part, b);
      results[kFirstB + 2 * i + 1] = weight_gradient(dy_part, inner[i], dtype);
    }
    at::Tensor scaled = d_inner;
    scaled.mul_(ctx->saved_data["scale"].toDouble());
    results[kFactorALeaf] = weight_gradient(scaled, x, dtype);
    if (ctx->needs_input_grad(0)) {
      results[0] = dy.mm(weight).addmm_(scaled, a);
    }
    results.resize(results.size() + 3);  // bias, rows and scale
    return results;
  }
};

at::Tensor low_rank_linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias) {
  const LowRank& low_rank = *weight.low_rank;
  TORCH_CHECK(!weight.leaf.requires_grad(), "linear: a weight with adapters must be frozen");
  std::vector<at::Tensor> tensors{x, weight.value, low_rank.a, low_rank.a_leaf};
  std::vector<int64_t> rows;
  for (const LowRank::Part& part : low_rank.parts) {
    tensors.push_back(part.b);
    tensors.push_back(part.b_leaf);
    rows.push_back(part.row);
  }
  return LowRankLinear::apply(at::TensorList(tensors), optional_part(bias), rows, low_rank.scale);
}

struct Embed : torch::autograd::Function<Embed> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& table, const at::Tensor& leaf,
                            const at::Tensor& ids) {
    ctx->save_for_backward({ids});
    ctx->saved_data[kLeafDtype] = static_cast<int64_t>(leaf.scalar_type());
    ctx->saved_data["rows"] = table.size(0);
    return at::embedding(table, ids);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor ids = ctx->get_saved_variables()[0];
    const at::Tensor d_table = at::embedding_dense_backward(
        grads[0].to(leaf_dtype(*ctx)), ids, ctx->saved_data["rows"].toInt(), /*padding_idx=*/-1,
        /*scale_grad_by_freq=*/false);
    return {at::Tensor(), d_table, at::Tensor()};
  }
};

}  // namespace

at::Tensor apply_linear(const at::Tensor& x_sI, const Weight& weight_OI, const Weight& bias_O) {
  TORCH_CHECK(
      x_sI.dim() == 2 && weight_OI.value.dim() == 2 && x_sI.size(1) == weight_OI.value.size(1),
      "linear: x ", x_sI.sizes(), " does not fit the weight ", weight_OI.value.sizes());
  check_alike("linear", {{"x", x_sI}, {"the weight", weight_OI.value}, {"the bias", bias_O.value}});
  if (weight_OI.low_rank != nullptr) {
    return low_rank_linear(x_sI, weight_OI, bias_O.value);
  }
  return Linear::apply(x_sI, weight_OI.value, weight_OI.leaf, optional_part(bias_O.value),
                       optional_part(bias_O.leaf));
}

at::Tensor embed(const Weight& table_VE, const at::Tensor& ids_s) {
  return Embed::apply(table_VE.value, table_VE.leaf, ids_s);
}

}  // namespace ringside::engine
