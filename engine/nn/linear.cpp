#include "engine/nn/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/nn/weight_products.h"
#include "engine/ops/checks.h"
#include "engine/ops/products.h"
#include "engine/params/quantised_matrix.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

constexpr const char* kLeafDtype = "leaf_dtype";
constexpr const char* kKernel = "kernel";

OptionalTensor optional_part(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

at::ScalarType leaf_dtype(AutogradContext& ctx) {
  return static_cast<at::ScalarType>(ctx.saved_data[kLeafDtype].toInt());
}

ProductKernels kernel_of(AutogradContext& ctx) {
  return ProductKernels::of_code(ctx.saved_data[kKernel].toInt());
}

// dy^T x in the leaf's dtype.
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::ScalarType dtype,
                           ProductKernels kernel) {
  if (dtype == x.scalar_type() && kernel.gradient == ProductKernel::kLibTorch) {
    return dy.t().mm(x);
  }
  at::Tensor sum = at::zeros({dy.size(1), x.size(1)}, x.options().dtype(dtype));
  add_gradient_product(sum, dy, x, kernel);
  return sum;
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& weight_leaf, const OptionalTensor& bias,
                            const OptionalTensor& /*bias_leaf*/, int64_t kernel) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data[kKernel] = kernel;
    ctx->saved_data[kLeafDtype] = static_cast<int64_t>(weight_leaf.scalar_type());
    ctx->saved_data["biased"] = bias.has_value();
    return product_with_rows(x, weight, bias.value_or(at::Tensor()),
                             ProductKernels::of_code(kernel));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor& dy = grads[0];
    at::Tensor d_x, d_weight, d_bias;
    if (ctx->needs_input_grad(0)) {
      d_x = product_with_columns(dy, ctx->get_saved_variables()[1], kernel_of(*ctx));
    }
    if (ctx->needs_input_grad(kWeightLeaf)) {
      d_weight = of_weight(*ctx, dy);
    }
    if (has_bias(*ctx) && ctx->needs_input_grad(kBiasLeaf)) {
      d_bias = of_bias(*ctx, dy);
    }
    return {d_x, at::Tensor(), d_weight, at::Tensor(), d_bias, at::Tensor()};
  }

  static constexpr std::size_t kWeightLeaf = 2, kBiasLeaf = 4;
  static bool has_bias(AutogradContext& ctx) { return ctx.saved_data["biased"].toBool(); }
  static at::Tensor of_weight(AutogradContext& ctx, const at::Tensor& dy) {
    return weight_gradient(dy, ctx.get_saved_variables()[0], leaf_dtype(ctx), kernel_of(ctx));
  }
  static at::Tensor of_bias(AutogradContext& ctx, const at::Tensor& dy) {
    return dy.sum(0, /*keepdim=*/false, leaf_dtype(ctx));
  }
};

using LinearNode = torch::autograd::CppNode<Linear>;

std::vector<std::size_t> linear_outputs(const torch::autograd::Node& node) {
  std::vector<std::size_t> outputs;
  for (const std::size_t output : {Linear::kWeightLeaf, Linear::kBiasLeaf}) {
    if (output < node.num_outputs() && node.should_compute_output(output)) {
      outputs.push_back(output);
    }
  }
  return outputs;
}

at::Tensor linear_gradient(torch::autograd::Node& node, std::size_t output, const at::Tensor& dy) {
  AutogradContext& ctx = static_cast<LinearNode&>(node).ctx_;
  return output == Linear::kBiasLeaf ? Linear::of_bias(ctx, dy) : Linear::of_weight(ctx, dy);
}

// The matrix of a frozen weight. A quantised one is unpacked for each product and dropped after it,
// so at most one of a model is unpacked at a time.
struct FrozenMatrix : torch::CustomClassHolder {
  explicit FrozenMatrix(const Weight& weight)
      : value(weight.value), packed(weight.packed), panels(weight.panels), kernel(weight.kernel) {}
  at::Tensor in(at::ScalarType dtype) const { return packed ? packed->unpack(dtype) : value; }

  at::Tensor value;
  std::shared_ptr<const PackedWeight> packed;
  std::shared_ptr<const Panels> panels;
  ProductKernels kernel;
};

// Tensors that FrozenLinear takes: x; with low-rank additions A and its leaf, then B and its leaf
// of each part.
constexpr std::size_t kFactorA = 1, kFactorALeaf = 2, kFirstB = 3;

// A frozen weight and its low-rank additions. The products with A and B are small beside the one
// with the weight, which is computed once for all parts.
struct FrozenLinear : torch::autograd::Function<FrozenLinear> {
  // rows: the first output row of each part; empty without low-rank additions.
  static at::Tensor forward(AutogradContext* ctx, at::TensorList tensors,
                            const OptionalTensor& bias,
                            const c10::intrusive_ptr<FrozenMatrix>& matrix,
                            const std::vector<int64_t>& rows, double scale) {
    const at::Tensor& x = tensors[0];
    const at::Tensor y =
        product_with_rows(x, matrix->in(x.scalar_type()), bias.value_or(at::Tensor()),
                          matrix->kernel, matrix->panels.get());
    ctx->saved_data[kKernel] = matrix->kernel.code();
    ctx->saved_data["matrix"] = c10::IValue::make_capsule(matrix);
    ctx->saved_data["rows"] = rows;
    ctx->saved_data["scale"] = scale;
    if (rows.empty()) {
      return y;
    }
    const at::Tensor scaled = at::mm(x, tensors[kFactorA].t()).mul_(scale);
    const std::vector<at::Tensor> inner = scaled.chunk(static_cast<int64_t>(rows.size()), 1);
    variable_list saved{x, scaled, tensors[kFactorA]};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const at::Tensor& b = tensors[kFirstB + 2 * i];
      y.narrow(1, rows[i], b.size(0)).addmm_(inner[i], b.t());
      saved.push_back(b);
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data[kLeafDtype] = static_cast<int64_t>(tensors[kFactorALeaf].scalar_type());
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor& dy = grads[0];
    const std::vector<int64_t> rows = ctx->saved_data["rows"].toIntVector();
    variable_list results(rows.empty() ? 1 : kFirstB + 2 * rows.size());
    const at::Tensor d_inner = rows.empty() ? at::Tensor() : factor_gradients(*ctx, dy, results);
    if (ctx->needs_input_grad(0)) {
      const auto capsule = ctx->saved_data["matrix"].toCapsule();
      results[0] = product_with_columns(
          dy, static_cast<const FrozenMatrix&>(*capsule).in(dy.scalar_type()), kernel_of(*ctx));
      if (d_inner.defined()) {
        results[0].addmm_(d_inner, ctx->get_saved_variables()[2]);
      }
    }
    results.resize(results.size() + 4);  // bias, matrix, rows and scale
    return results;
  }

  // Sets the gradients of A and B; returns that of x A^T.
  static at::Tensor factor_gradients(AutogradContext& ctx, const at::Tensor& dy,
                                     variable_list& results) {
    const variable_list saved = ctx.get_saved_variables();
    const std::vector<int64_t> rows = ctx.saved_data["rows"].toIntVector();
    const auto parts = static_cast<int64_t>(rows.size());
    const at::ScalarType dtype = leaf_dtype(ctx);
    const ProductKernels kernel = kernel_of(ctx);
    const std::vector<at::Tensor> inner = saved[1].chunk(parts, 1);
    at::Tensor d_inner = at::empty_like(saved[1]);
    std::vector<at::Tensor> d_parts = d_inner.chunk(parts, 1);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const at::Tensor& b = saved[3 + i];
      const at::Tensor dy_part = dy.narrow(1, rows[i], b.size(0));
      at::mm_out(d_parts[i], dy_part, b);
      results[kFirstB + 2 * i + 1] = weight_gradient(dy_part, inner[i], dtype, kernel);
    }
    d_inner.mul_(ctx.saved_data["scale"].toDouble());
    results[kFactorALeaf] = weight_gradient(d_inner, saved[0], dtype, kernel);
    return d_inner;
  }
};

at::Tensor frozen_linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias) {
  TORCH_CHECK(!weight.leaf.defined() || !weight.leaf.requires_grad(),
              "linear: a weight with adapters must be frozen");
  std::vector<at::Tensor> tensors{x};
  std::vector<int64_t> rows;
  double scale = 1.0;
  if (const LowRank* low_rank = weight.low_rank.get()) {
    tensors.insert(tensors.end(), {low_rank->a, low_rank->a_leaf});
    for (const LowRank::Part& part : low_rank->parts) {
      tensors.insert(tensors.end(), {part.b, part.b_leaf});
      rows.push_back(part.row);
    }
    scale = low_rank->scale;
  }
  return FrozenLinear::apply(at::TensorList(tensors), optional_part(bias),
                             c10::make_intrusive<FrozenMatrix>(weight), rows, scale);
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

struct AddBias : torch::autograd::Function<AddBias> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const at::Tensor& bias,
                            const at::Tensor& leaf) {
    ctx->saved_data[kLeafDtype] = static_cast<int64_t>(leaf.scalar_type());
    return y + bias;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor d_bias = ctx->needs_input_grad(2)
                                  ? grads[0].sum(0, /*keepdim=*/false, leaf_dtype(*ctx))
                                  : at::Tensor();
    return {grads[0], at::Tensor(), d_bias};
  }
};

// Rows of a part of a table. places: in the part, or -1.
struct EmbedPart : torch::autograd::Function<EmbedPart> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& table, const at::Tensor& leaf,
                            const at::Tensor& places) {
    ctx->save_for_backward({places});
    ctx->saved_data[kLeafDtype] = static_cast<int64_t>(leaf.scalar_type());
    ctx->saved_data["rows"] = table.size(0);
    if (table.size(0) == 0) {
      return at::zeros({places.size(0), table.size(1)}, table.options());
    }
    return at::embedding(table, places.clamp_min(0)).masked_fill_(places.lt(0).unsqueeze(1), 0.0);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor places = ctx->get_saved_variables()[0];
    const int64_t rows = ctx->saved_data["rows"].toInt();
    // One row more takes the gradients of other ranks' words, and is not read.
    const at::Tensor d_table = at::embedding_dense_backward(
        grads[0].to(leaf_dtype(*ctx)), at::where(places.lt(0), rows, places), rows + 1,
        /*padding_idx=*/rows, /*scale_grad_by_freq=*/false);
    return {at::Tensor(), d_table.narrow(0, 0, rows), at::Tensor()};
  }
};

}  // namespace

at::Tensor apply_linear(const at::Tensor& x_sI, const Weight& weight_OI, const Weight& bias_O) {
  if (const PackedWeight* packed = weight_OI.packed.get()) {
    TORCH_CHECK(x_sI.dim() == 2 && x_sI.size(1) == packed->columns(), "linear: x ", x_sI.sizes(),
                " does not fit the packed weight [", packed->rows(), ", ", packed->columns(), "]");
    check_alike("linear", {{"x", x_sI}, {"the bias", bias_O.value}});
    return frozen_linear(x_sI, weight_OI, bias_O.value);
  }
  TORCH_CHECK(
      x_sI.dim() == 2 && weight_OI.value.dim() == 2 && x_sI.size(1) == weight_OI.value.size(1),
      "linear: x ", x_sI.sizes(), " does not fit the weight ", weight_OI.value.sizes());
  check_alike("linear", {{"x", x_sI}, {"the weight", weight_OI.value}, {"the bias", bias_O.value}});
  if (weight_OI.low_rank != nullptr) {
    return frozen_linear(x_sI, weight_OI, bias_O.value);
  }
  if (weight_OI.panels != nullptr && !at::GradMode::is_enabled()) {
    return product_with_rows(x_sI, weight_OI.value, bias_O.value, weight_OI.kernel,
                             weight_OI.panels.get());
  }
  return Linear::apply(x_sI, weight_OI.value, weight_OI.leaf, optional_part(bias_O.value),
                       optional_part(bias_O.leaf), weight_OI.kernel.code());
}

std::optional<WeightProducts> linear_products(const torch::autograd::Node& node) {
  if (dynamic_cast<const LinearNode*>(&node) == nullptr) {
    return std::nullopt;
  }
  return WeightProducts{&linear_outputs, &linear_gradient};
}

at::Tensor add_bias(const at::Tensor& y_sO, const Weight& bias_O) {
  return bias_O.defined() ? AddBias::apply(y_sO, bias_O.value, bias_O.leaf) : y_sO;
}

at::Tensor embed(const Weight& table_VE, const at::Tensor& ids_s) {
  return Embed::apply(table_VE.value, table_VE.leaf, ids_s);
}

at::Tensor embed_part(const Weight& table_vE, const at::Tensor& ids_s, const VocabularyPart& part) {
  return EmbedPart::apply(table_vE.value, table_vE.leaf, part.places_of(ids_s));
}

}  // namespace ringside::engine
