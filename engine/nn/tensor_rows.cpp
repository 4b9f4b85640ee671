#include "engine/nn/tensor_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "engine/params/sharding.h"
#include "sp/mesh/saved_context.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct GatherRows : torch::autograd::Function<GatherRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& own, const RowParts& parts) {
    sp::hold(ctx, parts);
    return parts.ranks->all_gather_rows(own, parts.rows_of, kTensorTag);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto parts = sp::held<RowParts>(ctx);
    return {parts.ranks->reduce_scatter_rows(grads[0], parts.rows_of, kTensorTag), at::Tensor()};
  }
};

struct ScatterRows : torch::autograd::Function<ScatterRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& partial,
                            const RowParts& parts) {
    sp::hold(ctx, parts);
    return parts.ranks->reduce_scatter_rows(partial, parts.rows_of, kTensorTag);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto parts = sp::held<RowParts>(ctx);
    return {parts.ranks->all_gather_rows(grads[0], parts.rows_of, kTensorTag), at::Tensor()};
  }
};

struct ReplicateRows : torch::autograd::Function<ReplicateRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& own, const RowParts& parts) {
    sp::hold(ctx, parts);
    return parts.ranks->all_gather_rows(own, parts.rows_of, kTensorTag);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {own_rows(grads[0], sp::held<RowParts>(ctx)), at::Tensor()};
  }
};

}  // namespace

sp::Range RowParts::own() const {
  const auto first = rows_of.begin() + ranks->rank();
  const int64_t begin = std::accumulate(rows_of.begin(), first, int64_t{0});
  return {begin, begin + *first};
}

RowParts even_rows(const std::shared_ptr<sp::Communicator>& ranks, int64_t rows) {
  RowParts parts{ranks, {}};
  const int64_t count = ranks == nullptr ? 1 : ranks->size();
  for (int64_t rank = 0; rank < count; ++rank) {
    parts.rows_of.push_back(sp::even_part(rows, count, rank).size());
  }
  return parts;
}

RowParts row_parts(const ComputeContext& context, int64_t rows) {
  return even_rows(context.tensor == nullptr ? nullptr : context.tensor->ranks, rows);
}

at::Tensor EntryParts::gathered_order(const at::Tensor& of_entries_n) const {
  return ranks.is_cut() ? of_entries_n.index_select(0, entry_n) : of_entries_n;
}

at::Tensor EntryParts::entry_order(const at::Tensor& gathered_n) const {
  return ranks.is_cut() ? gathered_n.index_select(0, place_n) : gathered_n;
}

at::Tensor gather_rows(const at::Tensor& own, const RowParts& parts) {
  return parts.is_cut() ? GatherRows::apply(own, parts) : own;
}

at::Tensor scatter_rows(const at::Tensor& partial, const RowParts& parts) {
  return parts.is_cut() ? ScatterRows::apply(partial, parts) : partial;
}

at::Tensor replicate_rows(const at::Tensor& own, const RowParts& parts) {
  return parts.is_cut() ? ReplicateRows::apply(own, parts) : own;
}

at::Tensor own_rows(const at::Tensor& all, const RowParts& parts) {
  if (!parts.is_cut()) {
    return all;
  }
  const sp::Range own = parts.own();
  const int64_t rows = std::accumulate(parts.rows_of.begin(), parts.rows_of.end(), int64_t{0});
  TORCH_CHECK(all.dim() > 0 && all.size(0) == rows, "tensor rows: ", all.sizes(), " for ", rows,
              " rows of all ranks");
  return all.narrow(0, own.begin, own.size());
}

}  // namespace ringside::engine
