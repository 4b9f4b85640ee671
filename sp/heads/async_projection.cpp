#include "sp/heads/async_projection.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <array>
#include <utility>

#include "sp/heads/head_exchange.h"
#include "sp/mesh/lengths.h"
#include "sp/mesh/saved_context.h"

namespace ringside::sp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr std::array<const char*, 3> kTags{"async_query", "async_key", "async_value"};
constexpr std::array<const char*, 3> kGradTags{"async_query_grad", "async_key_grad",
                                               "async_value_grad"};

using Leaf = std::optional<at::Tensor>;
using Bias = std::optional<ProjectionParameter>;

Leaf leaf_of(const Bias& bias) { return bias ? Leaf(bias->leaf) : std::nullopt; }
std::optional<at::ScalarType> leaf_dtype(const Bias& bias) {
  return bias ? std::make_optional(bias->leaf.scalar_type()) : std::nullopt;
}
Leaf value_of(const Bias& bias) { return bias ? Leaf(bias->value) : std::nullopt; }

// dy^T x in the leaf's dtype.
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::ScalarType dtype) {
  if (dtype == x.scalar_type()) {
    return dy.t().mm(x);
  }
  // CUDA has products of 16-bit factors with a wider result.
  return x.is_cuda() ? at::mm(dy.t(), x, dtype) : dy.t().to(dtype).mm(x.to(dtype));
}

struct QkvParameters {
  std::array<ProjectionParameter, 3> weights;  // q, k, v
  std::array<Bias, 3> biases;
  int64_t head_dim;
};

// What both passes use.
struct QkvCall {
  std::array<HeadExchange, 3> exchange;
  std::array<at::ScalarType, 3> weight_dtype;               // of the leaves
  std::array<std::optional<at::ScalarType>, 3> bias_dtype;  // none without a bias
  std::shared_ptr<Communicator> comm;
};

class QkvProjection : public torch::autograd::Function<QkvProjection> {
 public:
  // The leaves are arguments for autograd's sake; the parameters have the values.
  static variable_list forward(AutogradContext* ctx, const Variable& x_sE,
                               const Variable& /*q_leaf*/, const Leaf& /*q_bias_leaf*/,
                               const Variable& /*k_leaf*/, const Leaf& /*k_bias_leaf*/,
                               const Variable& /*v_leaf*/, const Leaf& /*v_bias_leaf*/,
                               const QkvParameters& parameters, const QkvCall& call,
                               KeptResults* kept) {
    const auto& weights = parameters.weights;
    hold(ctx, call);
    ctx->save_for_backward({x_sE, weights[0].value, weights[1].value, weights[2].value});
    return compute_once(kept, [&] {
      std::array<StartedExchange, 3> started;
      for (std::size_t i = 0; i < 3; ++i) {
        const at::Tensor y_sHD = at::linear(x_sE, weights[i].value, value_of(parameters.biases[i]))
                                     .unflatten(1, {-1, parameters.head_dim});
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
    variable_list result(10);
    // Index among needs_input_grad, which counts defined tensors only; hidden is 0.
    std::size_t edge = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      const at::Tensor& weight = saved[1 + i];
      const at::Tensor dy_sO =
          finish_to_sequence(std::move(started[i]), call.exchange[i], *call.comm)[0].flatten(1);
      if (ctx->needs_input_grad(++edge)) {
        result[1 + 2 * i] = weight_gradient(dy_sO, x_sE, call.weight_dtype[i]);
      }
      if (call.bias_dtype[i] && ctx->needs_input_grad(++edge)) {
        result[2 + 2 * i] = dy_sO.sum(0, /*keepdim=*/false, call.bias_dtype[i]);
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
  at::ScalarType weight_dtype;               // of the leaf
  std::optional<at::ScalarType> bias_dtype;  // none without a bias
  std::shared_ptr<Communicator> comm;
};

// The columns of weight [E, H D] for a rank's heads.
at::Tensor columns(const at::Tensor& weight, Range heads, int64_t head_dim) {
  return weight.narrow(1, heads.begin * head_dim, heads.size() * head_dim);
}

class OutputProjection : public torch::autograd::Function<OutputProjection> {
 public:
  // Of the parameters, the leaves are arguments for autograd's sake.
  static Variable forward(AutogradContext* ctx, const Variable& out_ShD, const Variable& /*leaf*/,
                          const Leaf& /*bias_leaf*/, const ProjectionParameter& parameter,
                          const Bias& bias, const OutputCall& call, KeptResults* kept) {
    const at::Tensor& weight = parameter.value;
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
      y_sE.add_(bias->value);
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
    variable_list result(7);
    if (ctx->needs_input_grad(1)) {
      result[1] = at::empty(weight.sizes(), weight.options().dtype(call.weight_dtype));
      for (int64_t p = 0; p < call.comm->size(); ++p) {
        columns(result[1], call.exchange.heads_of[0][p], d)
            .copy_(weight_gradient(dy_sE, saved[p].flatten(1), call.weight_dtype));
      }
    }
    if (call.bias_dtype && ctx->needs_input_grad(2)) {
      result[2] = dy_sE.sum(0, /*keepdim=*/false, call.bias_dtype);
    }
    result[0] = finish_to_heads(std::move(started), call.exchange, *call.comm)[0];
    return result;
  }
};

void check_weight(const ProjectionParameter& parameter, const Bias& bias, int64_t in,
                  const char* what) {
  const at::Tensor& weight = parameter.value;
  TORCH_CHECK(weight.dim() == 2 && weight.size(1) == in, what, ": a weight [out, ", in,
              "] is needed, got ", weight.sizes());
  TORCH_CHECK(!bias || bias->value.defined(), what, ": an undefined bias; pass none");
  TORCH_CHECK(!bias || (bias->value.dim() == 1 && bias->value.size(0) == weight.size(0)), what,
              ": a bias of ", weight.size(0), " is needed, got ", bias->value.sizes());
  for (const ProjectionParameter* each : {&parameter, bias ? &*bias : nullptr}) {
    TORCH_CHECK(each == nullptr || each->leaf.sizes() == each->value.sizes(), what,
                ": a parameter's leaf and value differ in shape");
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> async_ulysses_qkv_projection(
    const at::Tensor& hidden_sE, const ProjectionParameter& q_weight, const Bias& q_bias,
    const ProjectionParameter& k_weight, const Bias& k_bias, const ProjectionParameter& v_weight,
    const Bias& v_bias, int64_t head_dim, const std::shared_ptr<Communicator>& comm,
    const std::vector<int64_t>& seq_lengths, KeptResults* kept) {
  constexpr const char* kWhat = "async_ulysses_qkv_projection";
  TORCH_CHECK(hidden_sE.dim() == 2, kWhat, ": hidden states [tokens, hidden] are needed, got ",
              hidden_sE.sizes());
  check_weight(q_weight, q_bias, hidden_sE.size(1), kWhat);
  check_weight(k_weight, k_bias, hidden_sE.size(1), kWhat);
  check_weight(v_weight, v_bias, hidden_sE.size(1), kWhat);
  const int64_t q_rows = q_weight.value.size(0), kv_rows = k_weight.value.size(0);
  TORCH_CHECK(head_dim > 0 && q_rows % head_dim == 0 && kv_rows % head_dim == 0 &&
                  kv_rows == v_weight.value.size(0),
              kWhat, ": head_dim ", head_dim, " with projections to ", q_rows, ", ", kv_rows, ", ",
              v_weight.value.size(0));
  const auto rows_of =
      known_lengths(seq_lengths, hidden_sE.size(0), hidden_sE.device(), *comm, kWhat);
  const HeadSplit split =
      split_heads({q_rows / head_dim, kv_rows / head_dim, head_dim}, comm->size());
  const HeadExchange kv{rows_of, {split.kv_heads_of}};
  const QkvCall call{
      {HeadExchange{rows_of, {split.query_heads_of}}, kv, kv},
      {q_weight.leaf.scalar_type(), k_weight.leaf.scalar_type(), v_weight.leaf.scalar_type()},
      {leaf_dtype(q_bias), leaf_dtype(k_bias), leaf_dtype(v_bias)},
      comm};
  const QkvParameters parameters{
      {q_weight, k_weight, v_weight}, {q_bias, k_bias, v_bias}, head_dim};
  const auto out =
      QkvProjection::apply(hidden_sE, q_weight.leaf, leaf_of(q_bias), k_weight.leaf,
                           leaf_of(k_bias), v_weight.leaf, leaf_of(v_bias), parameters, call, kept);
  return {out[0], out[1], out[2]};
}

at::Tensor async_ulysses_output_projection(const at::Tensor& out_ShD,
                                           const ProjectionParameter& parameter, const Bias& bias,
                                           const std::shared_ptr<Communicator>& comm,
                                           const std::vector<int64_t>& seq_lengths,
                                           KeptResults* kept) {
  constexpr const char* kWhat = "async_ulysses_output_projection";
  const at::Tensor& weight = parameter.value;
  TORCH_CHECK(
      out_ShD.dim() == 3 && out_ShD.size(2) > 0 && weight.dim() == 2 &&
          weight.size(1) % out_ShD.size(2) == 0,
      kWhat,
      ": attention output [tokens, heads, dim] and a weight [hidden, heads x dim] are needed, got ",
      out_ShD.sizes(), " and ", weight.sizes());
  check_weight(parameter, bias, weight.size(1), kWhat);
  const auto heads_of = ranges_of(even_lengths(weight.size(1) / out_ShD.size(2), comm->size()));
  TORCH_CHECK(out_ShD.size(1) == heads_of[comm->rank()].size(), kWhat, ": rank ", comm->rank(),
              " holds ", out_ShD.size(1), " heads, the weight ", weight.sizes(), " expects ",
              heads_of[comm->rank()].size());
  const auto rows_of = cut_lengths(seq_lengths, out_ShD.size(0), *comm, kWhat);
  const OutputCall call{
      {rows_of, {heads_of}}, parameter.leaf.scalar_type(), leaf_dtype(bias), comm};
  return OutputProjection::apply(out_ShD, parameter.leaf, leaf_of(bias), parameter, bias, call,
                                 kept);
}

}  // namespace ringside::sp
