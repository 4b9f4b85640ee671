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

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& weight,
                            const at::Tensor& leaf, const std::vector<int64_t>& counts,
                            int64_t kernel_id) {
    const auto kernel = ProductKernels::of_code(kernel_id);
    ctx->save_for_backward({rows, weight});
    ctx->saved_data["counts"] = counts;
    ctx->saved_data["kernel"] = kernel_id;
    ctx->saved_data["leaf_dtype"] = static_cast<int64_t>(leaf.scalar_type());
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

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &rows = saved[0], &weight = saved[1];
    const at::Tensor dy = grads[0].contiguous();
    const std::vector<int64_t> counts = ctx->saved_data["counts"].toIntVector();
    const auto kernel = ProductKernels::of_code(ctx->saved_data["kernel"].toInt());
    at::Tensor d_rows, d_weight;
    if (ctx->needs_input_grad(0)) {
      d_rows = at::empty_like(rows);
      for_each_group(counts, [&](int64_t expert, int64_t begin, int64_t n) {
        const at::Tensor dy_n = dy.narrow(0, begin, n);
        at::Tensor d_n = d_rows.narrow(0, begin, n);
        if (kernel.backward == ProductKernel::kLibTorch) {
          at::mm_out(d_n, dy_n, weight[expert]);
        } else {
          d_n.copy_(product_with_columns(dy_n, weight[expert], kernel));
        }
      });
    }
    if (ctx->needs_input_grad(kWeightLeaf)) {
      d_weight = of_weight(*ctx, dy);
    }
    return {d_rows, at::Tensor(), d_weight, at::Tensor(), at::Tensor()};
  }

  static constexpr std::size_t kWeightLeaf = 2;
  static at::Tensor of_weight(AutogradContext& ctx, const at::Tensor& dy) {
    const variable_list saved = ctx.get_saved_variables();
    const at::Tensor &rows = saved[0], &weight = saved[1];
    const auto kernel = ProductKernels::of_code(ctx.saved_data["kernel"].toInt());
    const auto dtype = static_cast<at::ScalarType>(ctx.saved_data["leaf_dtype"].toInt());
    at::Tensor d_weight = at::zeros(weight.sizes(), weight.options().dtype(dtype));
    for_each_group(ctx.saved_data["counts"].toIntVector(),
                   [&](int64_t expert, int64_t begin, int64_t n) {
                     add_gradient_product(d_weight[expert], dy.narrow(0, begin, n),
                                          rows.narrow(0, begin, n), kernel);
                   });
    return d_weight;
  }
};

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
  TORCH_CHECK(weight_XOI.packed == nullptr && weight_XOI.low_rank == nullptr,
              "experts: adapters and quantised weights are not supported there");
  const at::Tensor& weight = weight_XOI.value;
  TORCH_CHECK(rows_RI.dim() == 2 && weight.dim() == 3 && rows_RI.size(1) == weight.size(2) &&
                  static_cast<int64_t>(counts_X.size()) == weight.size(0) &&
                  std::accumulate(counts_X.begin(), counts_X.end(), int64_t{0}) == rows_RI.size(0),
              "experts: rows ", rows_RI.sizes(), " for the counts ", counts_X,
              " do not fit the weight ", weight.sizes());
  check_alike("experts", {{"the rows", rows_RI}, {"the weight", weight}});
  return GroupedLinear::apply(rows_RI, weight, weight_XOI.leaf, counts_X, weight_XOI.kernel.code());
}

std::optional<WeightProducts> grouped_linear_products(const torch::autograd::Node& node) {
  if (dynamic_cast<const GroupedNode*>(&node) == nullptr) {
    return std::nullopt;
  }
  return WeightProducts{&grouped_outputs, &grouped_gradient};
}

}  // namespace ringside::engine
