#include "engine/nn/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "engine/nn/checks.h"
#include "engine/nn/operators.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

constexpr const char* kLeafDtype = "leaf_dtype";

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

OptionalTensor optional_part(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

}  // namespace

at::Tensor apply_linear(const at::Tensor& x_sI, const Weight& weight_OI, const Weight& bias_O) {
  TORCH_CHECK(
      x_sI.dim() == 2 && weight_OI.value.dim() == 2 && x_sI.size(1) == weight_OI.value.size(1),
      "linear: x ", x_sI.sizes(), " does not fit the weight ", weight_OI.value.sizes());
  check_alike("linear", {{"x", x_sI}, {"the weight", weight_OI.value}, {"the bias", bias_O.value}});
  return Linear::apply(x_sI, weight_OI.value, weight_OI.leaf, optional_part(bias_O.value),
                       optional_part(bias_O.leaf));
}

at::Tensor embed(const Weight& table_VE, const at::Tensor& ids_s) {
  return Embed::apply(table_VE.value, table_VE.leaf, ids_s);
}

}  // namespace ringside::engine
