#include "sp/functional/async_projection.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <array>
#include <utility>

#include "sp/functional/head_exchange.h"
#include "sp/functional/saved_context.h"
#include "sp/mesh/head_packing.h"

namespace ringside::sp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr std::array<const char*, 3> kTags{"async_query", "async_key", "async_value"};
constexpr std::array<const char*, 3> kGradTags{"async_query_grad", "async_key_grad",
                                               "async_value_grad"};

using Bias = std::optional<at::Tensor>;

struct QkvCall {
  std::array<HeadExchange, 3> exchange;  // q, k, v
  std::array<bool, 3> has_bias;
  int64_t head_dim;
  std::shared_ptr<Communicator> comm;
};

class QkvProjection : public torch::autograd::Function<QkvProjection> {
 public:
  static variable_list forward(AutogradContext* ctx, const Variable& x_sE, const Variable& q_weight,
                               const Bias& q_bias, const Variable& k_weight, const Bias& k_bias,
                               const Variable& v_weight, const Bias& v_bias, const QkvCall& call,
                               KeptResults* kept) {
    hold(ctx, call);
    ctx->save_for_backward({x_sE, q_weight, k_weight, v_weight});
    const std::array<const Variable*, 3> weights{&q_weight, &k_weight, &v_weight};
    const std::array<const Bias*, 3> biases{&q_bias, &k_bias, &v_bias};
    return compute_once(kept, [&] {
      std::array<StartedExchange, 3> started;
      for (std::size_t i = 0; i < 3; ++i) {
        const at::Tensor y_sHD =
            at::linear(x_sE, *weights[i], *biases[i]).unflatten(1, {-1, call.head_dim});
        started[i] = start_to_heads({y_sHD}, call.exchange[i], *call.comm, kTags[i]);
      }
      variable_list out;
      for (std::size_t i = 0; i < 3; ++i) {
        out.push_back(finish_to_heads(std::move(started[i]), call.exchange[i], *call.comm)[0]);
      }
      return out;
    });
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const QkvCall call = held<QkvCall>(ctx);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x_sE = saved[0];
    std::array<StartedExchange, 3> started;
    for (std::size_t i = 0; i < 3; ++i) {
      started[i] = start_to_sequence({grads[i]}, call.exchange[i], *call.comm, kGradTags[i]);
    }
    variable_list result(9);
    // Index among needs_input_grad, which counts defined tensors only; hidden is 0.
    std::size_t edge = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      const at::Tensor& weight = saved[1 + i];
      const at::Tensor dy_sO =
          finish_to_sequence(std::move(started[i]), call.exchange[i], *call.comm)[0].flatten(1);
      if (ctx->needs_input_grad(++edge)) {
        result[1 + 2 * i] = dy_sO.t().mm(x_sE);
      }
      if (call.has_bias[i] && ctx->needs_input_grad(++edge)) {
        result[2 + 2 * i] = dy_sO.sum(0);
      }
      if (ctx->needs_input_grad(0)) {
        result[0] = i == 0 ? dy_sO.mm(weight) : result[0].addmm_(dy_sO, weight);
      }
    }
    return result;
  }
};

struct OutputCall {
  HeadExchange exchange;
  bool has_bias;
  std::shared_ptr<Communicator> comm;
};

// The columns of weight [E, H D] for a rank's heads.
at::Tensor columns(const at::Tensor& weight, Range heads, int64_t head_dim) {
  return weight.narrow(1, heads.begin * head_dim, heads.size() * head_dim);
}

class OutputProjection : public torch::autograd::Function<OutputProjection> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& out_ShD, const Variable& weight,
                          const Bias& bias, const OutputCall& call, KeptResults* kept) {
    Communicator& comm = *call.comm;
    const auto& rows_of = call.exchange.rows_of;
    const auto& heads_of = call.exchange.heads_of[0];
    const int64_t P = comm.size(), me = comm.rank(), d = out_ShD.size(2);
    const auto sends = out_ShD.contiguous().split_with_sizes(rows_of);
    std::vector<std::unique_ptr<Transfer>> transfers;
    variable_list pieces = compute_once(kept, [&] {  // [s, heads of p, D]
      variable_list received(P);
      for (int64_t step = 1; step < P; ++step) {
        const int64_t to = (me + step) % P, from = (me + P - step) % P;
        received[from] = at::empty({rows_of[me], heads_of[from].size(), d}, out_ShD.options());
        transfers.push_back(comm.send_recv(sends[to], to, received[from], from, "async_output"));
      }
      return received;
    });
    pieces[me] = sends[me];
    const auto dtype = out_ShD.scalar_type();
    at::Tensor y_sE;
    for (int64_t step = 0; step < P; ++step) {
      const int64_t from = (me + P - step) % P;
      if (step > 0 && !transfers.empty()) {
        transfers[step - 1]->wait();
      }
      const at::Tensor product = pieces[from].flatten(1).mm(columns(weight, heads_of[from], d).t());
      y_sE = step == 0 ? product.to(at::toOpMathType(dtype)) : y_sE.add_(product);
    }
    if (bias) {
      y_sE.add_(*bias);
    }
    hold(ctx, call);
    pieces.push_back(weight);
    ctx->save_for_backward(std::move(pieces));
    return y_sE.to(dtype);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const OutputCall call = held<OutputCall>(ctx);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &weight = saved.back(), &dy_sE = grads[0];
    const int64_t d = saved.front().size(2);
    auto started = start_to_heads({dy_sE.mm(weight).unflatten(1, {-1, d})}, call.exchange,
                                  *call.comm, "async_output_grad");
    variable_list result(5);
    if (ctx->needs_input_grad(1)) {
      result[1] = at::empty_like(weight, at::MemoryFormat::Contiguous);
      for (int64_t p = 0; p < call.comm->size(); ++p) {
        columns(result[1], call.exchange.heads_of[0][p], d)
            .copy_(dy_sE.t().mm(saved[p].flatten(1)));
      }
    }
    if (call.has_bias && ctx->needs_input_grad(2)) {
      result[2] = dy_sE.sum(0);
    }
    result[0] = finish_to_heads(std::move(started), call.exchange, *call.comm)[0];
    return result;
  }
};

void check_weight(const at::Tensor& weight, const Bias& bias, int64_t in, const char* what) {
  TORCH_CHECK(weight.dim() == 2 && weight.size(1) == in, what, ": a weight [out, ", in,
              "] is needed, got ", weight.sizes());
  TORCH_CHECK(!bias || bias->defined(), what, ": an undefined bias; pass none");
  TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == weight.size(0)), what, ": a bias of ",
              weight.size(0), " is needed, got ", bias->sizes());
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> async_ulysses_qkv_projection(
    const at::Tensor& hidden_sE, const at::Tensor& q_weight, const Bias& q_bias,
    const at::Tensor& k_weight, const Bias& k_bias, const at::Tensor& v_weight, const Bias& v_bias,
    int64_t head_dim, const std::shared_ptr<Communicator>& comm,
    const std::vector<int64_t>& seq_lengths, KeptResults* kept) {
  constexpr const char* kWhat = "async_ulysses_qkv_projection";
  TORCH_CHECK(hidden_sE.dim() == 2, kWhat, ": hidden states [tokens, hidden] are needed, got ",
              hidden_sE.sizes());
  check_weight(q_weight, q_bias, hidden_sE.size(1), kWhat);
  check_weight(k_weight, k_bias, hidden_sE.size(1), kWhat);
  check_weight(v_weight, v_bias, hidden_sE.size(1), kWhat);
  TORCH_CHECK(head_dim > 0 && q_weight.size(0) % head_dim == 0 &&
                  k_weight.size(0) % head_dim == 0 && k_weight.size(0) == v_weight.size(0),
              kWhat, ": head_dim ", head_dim, " with projections to ", q_weight.size(0), ", ",
              k_weight.size(0), ", ", v_weight.size(0));
  const auto rows_of =
      known_lengths(seq_lengths, hidden_sE.size(0), hidden_sE.device(), *comm, kWhat);
  std::vector<Range> query_heads_of, kv_heads_of;
  for (int64_t p = 0; p < comm->size(); ++p) {
    const auto share =
        head_share(q_weight.size(0) / head_dim, k_weight.size(0) / head_dim, comm->size(), p);
    query_heads_of.push_back(share.query_heads);
    kv_heads_of.push_back(share.kv_heads);
  }
  if (comm->size() == 1) {
    const auto split = [&](const at::Tensor& w, const Bias& b) {
      return at::linear(hidden_sE, w, b).unflatten(1, {-1, head_dim});
    };
    return {split(q_weight, q_bias), split(k_weight, k_bias), split(v_weight, v_bias)};
  }
  const HeadExchange kv{rows_of, {kv_heads_of}};
  const QkvCall call{{HeadExchange{rows_of, {query_heads_of}}, kv, kv},
                     {q_bias.has_value(), k_bias.has_value(), v_bias.has_value()},
                     head_dim,
                     comm};
  const auto out = QkvProjection::apply(hidden_sE, q_weight, q_bias, k_weight, k_bias, v_weight,
                                        v_bias, call, kept);
  return {out[0], out[1], out[2]};
}

at::Tensor async_ulysses_output_projection(const at::Tensor& out_ShD, const at::Tensor& weight,
                                           const Bias& bias,
                                           const std::shared_ptr<Communicator>& comm,
                                           const std::vector<int64_t>& seq_lengths,
                                           KeptResults* kept) {
  constexpr const char* kWhat = "async_ulysses_output_projection";
  TORCH_CHECK(
      out_ShD.dim() == 3 && out_ShD.size(2) > 0 && weight.dim() == 2 &&
          weight.size(1) % out_ShD.size(2) == 0,
      kWhat,
      ": attention output [tokens, heads, dim] and a weight [hidden, heads x dim] are needed, got ",
      out_ShD.sizes(), " and ", weight.sizes());
  check_weight(weight, bias, weight.size(1), kWhat);
  const auto heads_of = ranges_of(even_lengths(weight.size(1) / out_ShD.size(2), comm->size()));
  TORCH_CHECK(out_ShD.size(1) == heads_of[comm->rank()].size(), kWhat, ": rank ", comm->rank(),
              " holds ", out_ShD.size(1), " heads, the weight ", weight.sizes(), " expects ",
              heads_of[comm->rank()].size());
  const auto rows_of = cut_lengths(seq_lengths, out_ShD.size(0), *comm, kWhat);
  const OutputCall call{{rows_of, {heads_of}}, bias.has_value(), comm};
  return comm->size() == 1 ? at::linear(out_ShD.flatten(1), weight, bias)
                           : OutputProjection::apply(out_ShD, weight, bias, call, kept);
}

}  // namespace ringside::sp
