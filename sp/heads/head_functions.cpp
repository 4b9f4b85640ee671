#include "sp/heads/head_functions.h"

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include <utility>

#include "sp/heads/head_exchange.h"
#include "sp/mesh/saved_context.h"

namespace ringside::sp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct Call {
  HeadExchange exchange;
  std::shared_ptr<Communicator> comm;
};

// x_sHR -> x_ShR
class ToHeads : public torch::autograd::Function<ToHeads> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& x_sHR, const Call& call) {
    hold(ctx, call);
    return to_heads(x_sHR, call.exchange, *call.comm, "seq_to_heads");
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Call call = held<Call>(ctx);
    return {to_sequence(grads[0], call.exchange, *call.comm, "seq_to_heads_grad"), Variable()};
  }
};

// x_ShR -> x_sHR
class ToSequence : public torch::autograd::Function<ToSequence> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& x_ShR, const Call& call) {
    hold(ctx, call);
    return to_sequence(x_ShR, call.exchange, *call.comm, "heads_to_seq");
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Call call = held<Call>(ctx);
    return {to_heads(grads[0], call.exchange, *call.comm, "heads_to_seq_grad"), Variable()};
  }
};

// q_sHR, k_sKR, v_sKR -> q_ShR, k_SkR, v_SkR
class QkvToHeads : public torch::autograd::Function<QkvToHeads> {
 public:
  static variable_list forward(AutogradContext* ctx, const Variable& q_sHR, const Variable& k_sKR,
                               const Variable& v_sKR, const Call& call) {
    hold(ctx, call);
    return finish_to_heads(
        start_to_heads({q_sHR, k_sKR, v_sKR}, call.exchange, *call.comm, "qkv_to_heads"),
        call.exchange, *call.comm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Call call = held<Call>(ctx);
    auto result =
        finish_to_sequence(start_to_sequence(grads, call.exchange, *call.comm, "qkv_to_heads_grad"),
                           call.exchange, *call.comm);
    result.emplace_back();
    return result;
  }
};

struct Dims {
  int64_t seq;
  int64_t head;
};

Dims checked_dims(const at::Tensor& x, int64_t seq_dim, int64_t head_dim, const char* what) {
  const Dims dims{at::maybe_wrap_dim(seq_dim, x.dim()), at::maybe_wrap_dim(head_dim, x.dim())};
  TORCH_CHECK(dims.seq != dims.head, what, ": the sequence and the heads are both dim ", dims.seq,
              " of ", x.sizes());
  return dims;
}

at::Tensor rows_first(const at::Tensor& x, Dims dims) {
  return x.movedim({dims.seq, dims.head}, {0, 1});
}
at::Tensor put_back(const at::Tensor& x, Dims dims) {
  return x.movedim({0, 1}, {dims.seq, dims.head});
}

}  // namespace

at::Tensor gather_seq_scatter_heads(const at::Tensor& x, int64_t seq_dim, int64_t head_dim,
                                    const std::shared_ptr<Communicator>& comm,
                                    const std::vector<int64_t>& seq_lengths) {
  constexpr const char* kWhat = "gather_seq_scatter_heads";
  const Dims dims = checked_dims(x, seq_dim, head_dim, kWhat);
  Call call{{known_lengths(seq_lengths, x.size(dims.seq), x.device(), *comm, kWhat),
             {ranges_of(even_lengths(x.size(dims.head), comm->size()))}},
            comm};
  return comm->size() == 1 ? x : put_back(ToHeads::apply(rows_first(x, dims), call), dims);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> gather_seq_scatter_heads_qkv(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t seq_dim,
    int64_t head_dim, const std::shared_ptr<Communicator>& comm,
    const std::vector<int64_t>& seq_lengths) {
  constexpr const char* kWhat = "gather_seq_scatter_heads_qkv";
  const Dims dims = checked_dims(q, seq_dim, head_dim, kWhat);
  TORCH_CHECK(k.sizes() == v.sizes() && k.dim() == q.dim(), kWhat, ": q, k, v have shapes ",
              q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  const auto rows_of = known_lengths(seq_lengths, q.size(dims.seq), q.device(), *comm, kWhat);
  const HeadSplit split = split_heads({q.size(dims.head), k.size(dims.head), 1}, comm->size());
  const Call call{{rows_of, {split.query_heads_of, split.kv_heads_of, split.kv_heads_of}}, comm};
  if (comm->size() == 1) {
    return {q, k, v};
  }
  const auto out =
      QkvToHeads::apply(rows_first(q, dims), rows_first(k, dims), rows_first(v, dims), call);
  return {put_back(out[0], dims), put_back(out[1], dims), put_back(out[2], dims)};
}

at::Tensor gather_heads_scatter_seq(const at::Tensor& x, int64_t head_dim, int64_t seq_dim,
                                    const std::shared_ptr<Communicator>& comm,
                                    const std::vector<int64_t>& seq_lengths,
                                    const std::vector<int64_t>& head_counts) {
  constexpr const char* kWhat = "gather_heads_scatter_seq";
  const Dims dims = checked_dims(x, seq_dim, head_dim, kWhat);
  auto rows_of = cut_lengths(seq_lengths, x.size(dims.seq), *comm, kWhat);
  auto heads_of =
      ranges_of(known_lengths(head_counts, x.size(dims.head), x.device(), *comm, kWhat));
  if (comm->size() == 1) {
    return x;
  }
  return put_back(ToSequence::apply(rows_first(x, dims),
                                    Call{{std::move(rows_of), {std::move(heads_of)}}, comm}),
                  dims);
}

}  // namespace ringside::sp
