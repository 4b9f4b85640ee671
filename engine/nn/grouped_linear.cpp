#include "engine/nn/grouped_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "engine/nn/weight_products.h"
#include "engine/ops/checks.h"
#include "engine/ops/products.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Calls use(expert, first row, rows) for each expert that has rows.
template <class Use>
void for_each_group(const std::vector<int64_t>& counts, Use use) {
  int64_t begin = 0;
  for (std::size_t expert = 0; expert < counts.size(); ++expert) {
    if (counts[expert] > 0) {
      use(static_cast<int64_t>(expert), begin, counts[expert]);
    }
    begin += counts[expert];
  }
}

// y of each group's rows = rows weight[x]^T.
at::Tensor multiply_groups(const at::Tensor& rows, const at::Tensor& weight,
                           const std::vector<int64_t>& counts, ProductKernels kernel) {
  at::Tensor y = at::empty({rows.size(0), weight.size(1)}, rows.options());
  for_each_group(counts, [&](int64_t expert, int64_t begin, int64_t n) {
    const at::Tensor rows_n = rows.narrow(0, begin, n);
    at::Tensor y_n = y.narrow(0, begin, n);
    if (kernel.forward == ProductKernel::kLibTorch) {
      at::mm_out(y_n, rows_n, weight[expert].t());
    } else {
      y_n.copy_(product_with_rows(rows_n, weight[expert], {}, kernel));
    }
  });
  return y;
}

// dy weight[x], the gradient of the rows.
at::Tensor multiply_back(const at::Tensor& dy, const at::Tensor& weight,
                         const std::vector<int64_t>& counts, ProductKernels kernel) {
  at::Tensor d_rows = at::empty({dy.size(0), weight.size(2)}, dy.options());
  for_each_group(counts, [&](int64_t expert, int64_t begin, int64_t n) {
    const at::Tensor dy_n = dy.narrow(0, begin, n);
    at::Tensor d_n = d_rows.narrow(0, begin, n);
    if (kernel.backward == ProductKernel::kLibTorch) {
      at::mm_out(d_n, dy_n, weight[expert]);
    } else {
      d_n.copy_(product_with_columns(dy_n, weight[expert], kernel));
    }
  });
  return d_rows;
}

// dy^T rows of each expert, in `dtype`: [X, O, I].
at::Tensor gradients_of_groups(const at::Tensor& dy, const at::Tensor& rows,
                               const std::vector<int64_t>& counts, at::ScalarType dtype,
                               ProductKernels kernel) {
  at::Tensor gradient = at::zeros({static_cast<int64_t>(counts.size()), dy.size(1), rows.size(1)},
                                  rows.options().dtype(dtype));
  for_each_group(counts, [&](int64_t expert, int64_t begin, int64_t n) {
    add_gradient_product(gradient[expert], dy.narrow(0, begin, n), rows.narrow(0, begin, n),
                         kernel);
  });
  return gradient;
}

constexpr const char* kGroupCounts = "counts";
constexpr const char* kGroupKernel = "kernel";
constexpr const char* kGroupLeafDtype = "leaf_dtype";

std::vector<int64_t> group_counts(AutogradContext& ctx) {
  return ctx.saved_data[kGroupCounts].toIntVector();
}

ProductKernels group_kernel(AutogradContext& ctx) {
  return ProductKernels::of_code(ctx.saved_data[kGroupKernel].toInt());
}

at::ScalarType group_leaf_dtype(AutogradContext& ctx) {
  return static_cast<at::ScalarType>(ctx.saved_data[kGroupLeafDtype].toInt());
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& weight,
                            const at::Tensor& leaf, const std::vector<int64_t>& counts,
                            int64_t kernel_id) {
    ctx->save_for_backward({rows, weight});
    ctx->saved_data[kGroupCounts] = counts;
    ctx->saved_data[kGroupKernel] = kernel_id;
    ctx->saved_data[kGroupLeafDtype] = static_cast<int64_t>(leaf.scalar_type());
    return multiply_groups(rows, weight, counts, ProductKernels::of_code(kernel_id));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor d_rows, d_weight;
    if (ctx->needs_input_grad(0)) {
      d_rows =
          multiply_back(dy, ctx->get_saved_variables()[1], group_counts(*ctx), group_kernel(*ctx));
    }
    if (ctx->needs_input_grad(kWeightLeaf)) {
      d_weight = of_weight(*ctx, dy);
    }
    return {d_rows, at::Tensor(), d_weight, at::Tensor(), at::Tensor()};
  }

  static constexpr std::size_t kWeightLeaf = 2;
  static at::Tensor of_weight(AutogradContext& ctx, const at::Tensor& dy) {
    return gradients_of_groups(dy, ctx.get_saved_variables()[0], group_counts(ctx),
                               group_leaf_dtype(ctx), group_kernel(ctx));
  }
};

// A frozen weight and its low-rank addition.
struct AdaptedGroups : torch::autograd::Function<AdaptedGroups> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& weight,
                            const at::Tensor& a, const at::Tensor& a_leaf, const at::Tensor& b,
                            const at::Tensor& b_leaf, const std::vector<int64_t>& counts,
                            double scale, int64_t kernel_id) {
    const at::Tensor y = multiply_groups(rows, weight, counts, ProductKernels::of_code(kernel_id));
    const at::Tensor inner = multiply_groups(rows, a, counts, {}).mul_(scale);
    for_each_group(counts, [&](int64_t expert, int64_t begin, int64_t n) {
      y.narrow(0, begin, n).addmm_(inner.narrow(0, begin, n), b[expert].t());
    });
    ctx->save_for_backward({rows, weight, a, b, inner});
    ctx->saved_data[kGroupCounts] = counts;
    ctx->saved_data[kGroupKernel] = kernel_id;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data[kGroupLeafDtype] = static_cast<int64_t>(a_leaf.scalar_type());
    TORCH_CHECK(a_leaf.scalar_type() == b_leaf.scalar_type(), "experts: leaves of adapters ",
                a_leaf.scalar_type(), " and ", b_leaf.scalar_type());
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &rows = saved[0], &a = saved[2], &inner = saved[4];
    const at::Tensor dy = grads[0].contiguous();
    const std::vector<int64_t> counts = group_counts(*ctx);
    const ProductKernels kernel = group_kernel(*ctx);
    const at::Tensor d_inner =
        multiply_back(dy, saved[3], counts, {}).mul_(ctx->saved_data["scale"].toDouble());
    variable_list results(9);
    results[kALeaf] = gradients_of_groups(d_inner, rows, counts, group_leaf_dtype(*ctx), kernel);
    results[kBLeaf] = gradients_of_groups(dy, inner, counts, group_leaf_dtype(*ctx), kernel);
    if (ctx->needs_input_grad(0)) {
      results[0] = multiply_back(dy, saved[1], counts, kernel);
      for_each_group(counts, [&](int64_t expert, int64_t begin, int64_t n) {
        results[0].narrow(0, begin, n).addmm_(d_inner.narrow(0, begin, n), a[expert]);
      });
    }
    return results;
  }

  static constexpr std::size_t kALeaf = 3, kBLeaf = 5;
};

at::Tensor apply_adapted(const at::Tensor& rows, const Weight& weight, const LowRank& low_rank,
                         const std::vector<int64_t>& counts) {
  TORCH_CHECK(!weight.leaf.requires_grad(), "experts: a weight with adapters must be frozen");
  TORCH_CHECK(low_rank.parts.size() == 1 && low_rank.a.dim() == 3 &&
                  low_rank.a.size(0) == weight.value.size(0) &&
                  low_rank.parts[0].b.size(1) == weight.value.size(1),
              "experts: adapters do not fit the weight ", weight.value.sizes());
  const LowRank::Part& part = low_rank.parts.front();
  check_alike("experts", {{"the rows", rows}, {"A", low_rank.a}, {"B", part.b}});
  return AdaptedGroups::apply(rows, weight.value, low_rank.a, low_rank.a_leaf, part.b, part.b_leaf,
                              counts, low_rank.scale, weight.kernel.code());
}

using GroupedNode = torch::autograd::CppNode<GroupedLinear>;

std::vector<std::size_t> grouped_outputs(const torch::autograd::Node& node) {
  return node.should_compute_output(GroupedLinear::kWeightLeaf)
             ? std::vector<std::size_t>{GroupedLinear::kWeightLeaf}
             : std::vector<std::size_t>();
}

at::Tensor grouped_gradient(torch::autograd::Node& node, std::size_t /*output*/,
                            const at::Tensor& dy) {
  return GroupedLinear::of_weight(static_cast<GroupedNode&>(node).ctx_, dy.contiguous());
}

}  // namespace

at::Tensor apply_grouped_linear(const at::Tensor& rows_RI, const Weight& weight_XOI,
                                const std::vector<int64_t>& counts_X) {
  TORCH_CHECK(weight_XOI.packed == nullptr, "experts: quantised weights are not supported there");
  const at::Tensor& weight = weight_XOI.value;
  TORCH_CHECK(rows_RI.dim() == 2 && weight.dim() == 3 && rows_RI.size(1) == weight.size(2) &&
                  static_cast<int64_t>(counts_X.size()) == weight.size(0) &&
                  std::accumulate(counts_X.begin(), counts_X.end(), int64_t{0}) == rows_RI.size(0),
              "experts: rows ", rows_RI.sizes(), " for the counts ", counts_X,
              " do not fit the weight ", weight.sizes());
  check_alike("experts", {{"the rows", rows_RI}, {"the weight", weight}});
  if (weight_XOI.low_rank != nullptr) {
    return apply_adapted(rows_RI, weight_XOI, *weight_XOI.low_rank, counts_X);
  }
  return GroupedLinear::apply(rows_RI, weight, weight_XOI.leaf, counts_X, weight_XOI.kernel.code());
}

std::optional<WeightProducts> grouped_linear_products(const torch::autograd::Node& node) {
  if (dynamic_cast<const GroupedNode*>(&node) == nullptr) {
    return std::nullopt;
  }
  return WeightProducts{&grouped_outputs, &grouped_gradient};
}

}  // namespace ringside::engine
