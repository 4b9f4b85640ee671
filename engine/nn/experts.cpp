#include "engine/nn/experts.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "engine/nn/expert_exchange.h"
#include "engine/nn/grouped_linear.h"
#include "engine/ops/gated_activation.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType sum_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

bool spreads(const ExpertPass& pass) { return pass.ranks != nullptr && pass.ranks->size() > 1; }

// Rows of all (token, route) pairs in order of their expert.
struct RowOrder {
  at::Tensor sorted;   // [s K] place of each sorted row among the pairs
  at::Tensor inverse;  // [s K] sorted place of each pair
};

RowOrder order_rows(const at::Tensor& expert_sK) {
  RowOrder order;
  const at::Tensor expert = expert_sK.reshape({-1});
  order.sorted = at::argsort(expert, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  order.inverse = at::zeros_like(order.sorted);
  order.inverse.scatter_(0, order.sorted, at::arange(expert.numel(), expert.options()));
  return order;
}

// The counts of the routes, which the second run of a recomputed layer takes from the first.
RowCounts count_rows(const at::Tensor& expert_sK, int64_t experts, const ExpertPass& pass) {
  const auto count = [&] {
    const at::Tensor expert = expert_sK.reshape({-1, 1});
    const at::Tensor counts_X = (expert == at::arange(experts, expert.options())).sum(0);
    return sp::KeptResults::Tensors{
        spreads(pass) ? exchange_row_counts(counts_X.unsqueeze(0), *pass.ranks).squeeze(0)
                      : counts_X};
  };
  const at::Tensor counts = sp::compute_once(pass.kept.get(), count).front();
  return {counts, counts.cpu()};
}

// terms [s, K, E], added in the order of K, in `dtype`.
at::Tensor sum_in_order(const at::Tensor& terms, at::ScalarType dtype) {
  at::Tensor sum = terms.select(1, 0).to(dtype, /*non_blocking=*/false, /*copy=*/true);
  for (int64_t k = 1; k < terms.size(1); ++k) {
    sum.add_(terms.select(1, k));
  }
  return sum;
}

// Copies each token's row to its experts. The backward gathers instead of adding by index.
struct Dispatch : torch::autograd::Function<Dispatch> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& sorted,
                            const at::Tensor& inverse, int64_t per_token) {
    ctx->save_for_backward({inverse});
    ctx->saved_data["per_token"] = per_token;
    return x.index_select(0, sorted.div(per_token, "floor"));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor inverse = ctx->get_saved_variables()[0];
    const int64_t k = ctx->saved_data["per_token"].toInt();
    const at::Tensor& dy = grads[0];
    const at::Tensor terms = dy.index_select(0, inverse).view({dy.size(0) / k, k, dy.size(1)});
    return {sum_in_order(terms, sum_dtype(dy)).to(dy.scalar_type()), at::Tensor(), at::Tensor(),
            at::Tensor()};
  }
};

// Weighted sum of each token's results.
struct Combine : torch::autograd::Function<Combine> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& weight,
                            const at::Tensor& sorted, const at::Tensor& inverse) {
    ctx->save_for_backward({rows, weight, sorted, inverse});
    const at::ScalarType dtype = sum_dtype(rows);
    const at::Tensor terms = terms_of(rows, weight, inverse).to(dtype);
    return sum_in_order(terms.mul(weight.to(dtype).unsqueeze(2)), dtype).to(rows.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &rows = saved[0], &weight = saved[1], &sorted = saved[2];
    const at::ScalarType dtype = sum_dtype(rows);
    const at::Tensor dy = grads[0].to(dtype).unsqueeze(1);  // [s, 1, E]
    const at::Tensor d_weight =
        dy.mul(terms_of(rows, weight, saved[3]).to(dtype)).sum(2).to(weight.scalar_type());
    const at::Tensor d_terms = dy.mul(weight.to(dtype).unsqueeze(2));  // [s, K, E]
    const at::Tensor d_rows = d_terms.view({-1, rows.size(1)}).index_select(0, sorted);
    return {d_rows.to(rows.scalar_type()), d_weight, at::Tensor(), at::Tensor()};
  }

  // [s, K, E]
  static at::Tensor terms_of(const at::Tensor& rows, const at::Tensor& weight,
                             const at::Tensor& inverse) {
    return rows.index_select(0, inverse).view({weight.size(0), weight.size(1), rows.size(1)});
  }
};

}  // namespace

at::Tensor apply_experts(const at::Tensor& x_sE, const Routes& routes, int64_t experts,
                         const ExpertPass& pass, const ExpertFunction& function) {
  TORCH_CHECK(routes.expert_sK.dim() == 2 && routes.expert_sK.size(0) == x_sE.size(0) &&
                  routes.expert_sK.sizes() == routes.weight_sK.sizes(),
              "experts: x ", x_sE.sizes(), " with routes ", routes.expert_sK.sizes(),
              " and weights ", routes.weight_sK.sizes());
  const RowOrder order = order_rows(routes.expert_sK);
  const RowCounts* known = pass.counts();
  const RowCounts counts = known != nullptr ? *known : count_rows(routes.expert_sK, experts, pass);
  const auto* first = counts.on_host.const_data_ptr<int64_t>();
  const std::vector<int64_t> sent_X(first, first + experts);
  pass.add_load(sent_X);
  const at::Tensor rows =
      Dispatch::apply(x_sE, order.sorted, order.inverse, routes.expert_sK.size(1));
  at::Tensor results;
  if (spreads(pass)) {
    const ExpertExchange exchange(pass.ranks, experts, counts);
    results = exchange.to_sources(function(exchange.to_experts(rows), exchange.counts()));
  } else {
    results = function(rows, sent_X);
  }
  return Combine::apply(results, routes.weight_sK, order.sorted, order.inverse);
}

at::Tensor swiglu_experts(const at::Tensor& rows_RE, const std::vector<int64_t>& counts_X,
                          const Weight& gate_up_X2IE, const Weight& down_XEI) {
  const at::Tensor gate_up = apply_grouped_linear(rows_RE, gate_up_X2IE, counts_X);
  return apply_grouped_linear(swiglu(gate_up), down_XEI, counts_X);
}

}  // namespace ringside::engine
