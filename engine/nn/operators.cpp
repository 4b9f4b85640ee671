#include "engine/nn/operators.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <string_view>

#include "engine/nn/cpu_operators.h"

namespace ringside::engine {
namespace {

// Schemas and CPU implementations stand together, so that no program can have one without the
// other. Other devices register their implementations from objects of their own.
TORCH_LIBRARY_FRAGMENT(ringside, m) {
  const auto define = [&m](const char* schema, auto on_cpu) {
    m.def(schema);
    const std::string name(schema, std::string_view(schema).find('('));
    m.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CPU, on_cpu));
  };
  define(
      "rms_norm(Tensor x, Tensor weight, float eps, bool in_fp32, bool plus_one) -> (Tensor, "
      "Tensor)",
      TORCH_FN(cpu::rms_norm));
  define(
      "add_rms_norm(Tensor x, Tensor branch, Tensor weight, float eps, bool in_fp32, bool plus_one)"
      " -> (Tensor, Tensor, Tensor)",
      TORCH_FN(cpu::add_rms_norm));
  define(
      "rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor rstd, Tensor? d_sum, bool "
      "plus_one)"
      " -> (Tensor, Tensor)",
      TORCH_FN(cpu::rms_norm_backward));
  define(
      "qk_norm_rope(Tensor heads, int query_heads, int key_heads, Tensor? q_norm, Tensor? k_norm,"
      " Tensor cos, Tensor sin, float eps, bool in_fp32, bool plus_one) -> (Tensor, Tensor)",
      TORCH_FN(cpu::qk_norm_rope));
  define(
      "qk_norm_rope_backward(Tensor dq, Tensor dk, Tensor dv, Tensor heads, Tensor? q_norm,"
      " Tensor? k_norm, Tensor rstd, Tensor cos, Tensor sin, bool plus_one) -> (Tensor, Tensor)",
      TORCH_FN(cpu::qk_norm_rope_backward));
  define("swiglu(Tensor gate_up) -> Tensor", TORCH_FN(cpu::swiglu));
  define("swiglu_backward(Tensor dy, Tensor gate_up) -> Tensor", TORCH_FN(cpu::swiglu_backward));
  define(
      "token_scores(Tensor logits, Tensor targets, Tensor temperature, Tensor(a!) logprobs,"
      " Tensor(b!) entropy, Tensor(c!) lse) -> ()",
      TORCH_FN(cpu::token_scores));
  define(
      "token_scores_backward(Tensor(a!) logits, Tensor targets, Tensor temperature, Tensor lse,"
      " Tensor entropy, Tensor g_logprobs, Tensor? g_entropy) -> ()",
      TORCH_FN(cpu::token_scores_backward));
  define("add_transposed_mm(Tensor(a!) sum, Tensor a, Tensor b) -> ()",
         TORCH_FN(cpu::add_transposed_mm));
}

template <class Signature>
class Operator;

template <class Result, class... Args>
class Operator<Result(Args...)> {
 public:
  explicit Operator(const char* name)
      : handle_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Result(Args...)>()) {
  }

  Result operator()(Args... args) const {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return handle_.call(args...);
  }

 private:
  c10::TypedOperatorHandle<Result(Args...)> handle_;
};

}  // namespace

namespace operators {

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight,
                                            double eps, bool in_fp32, bool plus_one) {
  static const Operator<decltype(rms_norm)> op("ringside::rms_norm");
  return op(x, weight, eps, in_fp32, plus_one);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x,
                                                            const at::Tensor& branch,
                                                            const at::Tensor& weight, double eps,
                                                            bool in_fp32, bool plus_one) {
  static const Operator<decltype(add_rms_norm)> op("ringside::add_rms_norm");
  return op(x, branch, weight, eps, in_fp32, plus_one);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                     const at::Tensor& weight,
                                                     const at::Tensor& rstd,
                                                     const std::optional<at::Tensor>& d_sum,
                                                     bool plus_one) {
  static const Operator<decltype(rms_norm_backward)> op("ringside::rms_norm_backward");
  return op(dy, x, weight, rstd, d_sum, plus_one);
}

std::tuple<at::Tensor, at::Tensor> qk_norm_rope(const at::Tensor& heads_sND, int64_t query_heads,
                                                int64_t key_heads,
                                                const std::optional<at::Tensor>& q_norm,
                                                const std::optional<at::Tensor>& k_norm,
                                                const at::Tensor& cos, const at::Tensor& sin,
                                                double eps, bool in_fp32, bool plus_one) {
  static const Operator<decltype(qk_norm_rope)> op("ringside::qk_norm_rope");
  return op(heads_sND, query_heads, key_heads, q_norm, k_norm, cos, sin, eps, in_fp32, plus_one);
}

std::tuple<at::Tensor, at::Tensor> qk_norm_rope_backward(
    const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& heads_sND,
    const std::optional<at::Tensor>& q_norm, const std::optional<at::Tensor>& k_norm,
    const at::Tensor& rstd, const at::Tensor& cos, const at::Tensor& sin, bool plus_one) {
  static const Operator<decltype(qk_norm_rope_backward)> op("ringside::qk_norm_rope_backward");
  return op(dq, dk, dv, heads_sND, q_norm, k_norm, rstd, cos, sin, plus_one);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  static const Operator<decltype(swiglu)> op("ringside::swiglu");
  return op(gate_up);
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  static const Operator<decltype(swiglu_backward)> op("ringside::swiglu_backward");
  return op(dy, gate_up);
}

void token_scores(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                  const at::Tensor& temperature_c, const at::Tensor& logprobs_c,
                  const at::Tensor& entropy_c, const at::Tensor& lse_c) {
  static const Operator<decltype(token_scores)> op("ringside::token_scores");
  op(logits_cV, targets_c, temperature_c, logprobs_c, entropy_c, lse_c);
}

void token_scores_backward(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                           const at::Tensor& temperature_c, const at::Tensor& lse_c,
                           const at::Tensor& entropy_c, const at::Tensor& g_logprobs_c,
                           const std::optional<at::Tensor>& g_entropy_c) {
  static const Operator<decltype(token_scores_backward)> op("ringside::token_scores_backward");
  op(logits_cV, targets_c, temperature_c, lse_c, entropy_c, g_logprobs_c, g_entropy_c);
}

void add_transposed_mm(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  static const Operator<decltype(add_transposed_mm)> op("ringside::add_transposed_mm");
  op(sum, a, b);
}

}  // namespace operators
}  // namespace ringside::engine
