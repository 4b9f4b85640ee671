#include "engine/ops/divergence.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "engine/ops/checks.h"
#include "engine/ops/head_logits.h"
#include "engine/ops/products.h"
#include "sp/mesh/saved_context.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Tensors of a chunk that exist at once: log-probs of both sides, and what is made of them.
constexpr int64_t kTensorsOfChunk = 6;
// Of the class of all other tokens.
constexpr double kLeastRest = 1e-7;

at::ScalarType wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor column(const at::Tensor& x_c) { return x_c.unsqueeze(1); }

// Log-probs of some rows over the head's words. Shapes: hidden [c, E], temperature [c].
at::Tensor log_softmax_of(const at::Tensor& hidden_cE, const Weight& head_VE,
                          const at::Tensor& temperature_c) {
  at::Tensor logits_cV = head_logits(hidden_cE, head_VE).to(wide(hidden_cE));
  logits_cV.div_(column(temperature_c));
  return at::log_softmax(logits_cV, -1);
}

// log m of two log-probs.
at::Tensor log_mixture(const at::Tensor& logp, const at::Tensor& logq, double mixture) {
  return at::logaddexp(logp + std::log1p(-mixture), logq + std::log(mixture));
}

// The divergence of each row. Shapes: [c, V] both, of whole distributions -> [c].
at::Tensor divergence_of_rows(const at::Tensor& logp, const at::Tensor& logq,
                              const Divergence& divergence) {
  switch (divergence.kind) {
    case DivergenceKind::kReverseKl:
      return (logp.exp() * (logp - logq)).sum(-1);
    case DivergenceKind::kForwardKl:
      return (logq.exp() * (logq - logp)).sum(-1);
    case DivergenceKind::kJensenShannon: {
      const at::Tensor logm = log_mixture(logp, logq, divergence.mixture);
      return divergence.mixture * (logq.exp() * (logq - logm)).sum(-1) +
             (1.0 - divergence.mixture) * (logp.exp() * (logp - logm)).sum(-1);
    }
  }
  TORCH_CHECK(false, "divergence: unknown kind");
}

// p (difference - its mean under p).
at::Tensor centred(const at::Tensor& logp, at::Tensor difference) {
  const at::Tensor p = logp.exp();
  return difference.sub_((p * difference).sum(-1, /*keepdim=*/true)).mul_(p);
}

// Gradient of divergence_of_rows() towards the student's tempered logits, [c, V].
at::Tensor gradient_of_rows(const at::Tensor& logp, const at::Tensor& logq,
                            const Divergence& divergence) {
  switch (divergence.kind) {
    case DivergenceKind::kReverseKl:
      return centred(logp, logp - logq);
    case DivergenceKind::kForwardKl:
      return logp.exp().sub_(logq.exp());
    case DivergenceKind::kJensenShannon:
      return centred(logp, logp - log_mixture(logp, logq, divergence.mixture))
          .mul_(1.0 - divergence.mixture);
  }
  TORCH_CHECK(false, "divergence: unknown kind");
}

// Some rows of what a term was given.
struct TermRows {
  const variable_list& given;
  int64_t begin;
  int64_t rows;
  at::Tensor part(std::size_t index) const { return given[index].narrow(0, begin, rows); }
};

// given: the teacher's hidden states, its temperature, its head.
struct VocabularyTerm {
  Divergence divergence;
  ProductKernels teacher_kernel;

  std::vector<int64_t> shape(int64_t n, const variable_list& /*given*/) const { return {n}; }
  at::Tensor values(const at::Tensor& logp_cV, const TermRows& rows) const {
    return divergence_of_rows(logp_cV, teacher(rows), divergence);
  }
  at::Tensor logits_gradient(const at::Tensor& logp_cV, const TermRows& rows,
                             const at::Tensor& g_c) const {
    return gradient_of_rows(logp_cV, teacher(rows), divergence).mul_(column(g_c));
  }

 private:
  at::Tensor teacher(const TermRows& rows) const {
    Weight head(rows.given[2]);
    head.kernel = teacher_kernel;
    return log_softmax_of(rows.part(0), head, rows.part(1));
  }
};

// given: the ids.
struct IdsTerm {
  std::vector<int64_t> shape(int64_t n, const variable_list& given) const {
    return {n, given[0].size(1)};
  }
  at::Tensor values(const at::Tensor& logp_cV, const TermRows& rows) const {
    return logp_cV.gather(1, rows.part(0));
  }
  at::Tensor logits_gradient(const at::Tensor& logp_cV, const TermRows& rows,
                             const at::Tensor& g_cK) const {
    return logp_cV.exp().mul_(-g_cK.sum(1, /*keepdim=*/true)).scatter_add_(1, rows.part(0), g_cK);
  }
};

// Numbers of each row as functions of its logits, which exist for a chunk of rows at a time. Both
// passes compute them.
template <class Term>
struct ChunkedTerm : torch::autograd::Function<ChunkedTerm<Term>> {
  struct Call {
    Term term;
    ProductKernels kernel;
    int64_t chunk_rows;
  };
  static constexpr std::size_t kOwn = 3;   // saved tensors before those of the term
  static constexpr std::size_t kLeaf = 2;  // place among the arguments of forward

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden_nE,
                            const at::Tensor& head_VE, const at::Tensor& /*head_leaf*/,
                            const at::Tensor& temperature_n, const variable_list& given,
                            const Call& call) {
    const int64_t n = hidden_nE.size(0);
    const at::Tensor temperature = temperature_n.to(wide(hidden_nE));
    Weight head(head_VE);
    head.kernel = call.kernel;
    const at::Tensor values =
        at::empty(call.term.shape(n, given), hidden_nE.options().dtype(wide(hidden_nE)));
    for (int64_t begin = 0; begin < n; begin += call.chunk_rows) {
      const TermRows rows{given, begin, std::min(call.chunk_rows, n - begin)};
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows.rows); };
      part(values).copy_(
          call.term.values(log_softmax_of(part(hidden_nE), head, part(temperature)), rows));
    }
    variable_list saved{hidden_nE, head_VE, temperature};
    saved.insert(saved.end(), given.begin(), given.end());
    ctx->save_for_backward(saved);
    sp::hold(ctx, call);
    return values;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &hidden_nE = saved[0], &temperature_n = saved[2];
    const Call call = sp::held<Call>(ctx);
    const variable_list given(saved.begin() + kOwn, saved.end());
    Weight head(saved[1]);
    head.kernel = call.kernel;
    const int64_t n = hidden_nE.size(0);
    // On CUDA products of two dtypes do not exist.
    const at::ScalarType product = hidden_nE.is_cuda() ? hidden_nE.scalar_type() : wide(hidden_nE);
    const at::Tensor d_hidden_nE = at::empty_like(hidden_nE);
    at::Tensor d_head_VE;
    if (ctx->needs_input_grad(kLeaf)) {
      d_head_VE = at::zeros(head.value.sizes(), head.value.options().dtype(wide(hidden_nE)));
    }
    for (int64_t begin = 0; begin < n; begin += call.chunk_rows) {
      const TermRows rows{given, begin, std::min(call.chunk_rows, n - begin)};
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows.rows); };
      const at::Tensor logp_cV = log_softmax_of(part(hidden_nE), head, part(temperature_n));
      const at::Tensor d_logits_cV = call.term.logits_gradient(logp_cV, rows, part(grads[0]))
                                         .div_(column(part(temperature_n)))
                                         .to(product);
      part(d_hidden_nE)
          .copy_(product_with_columns(d_logits_cV.to(hidden_nE.scalar_type()), head.value,
                                      call.kernel));
      if (d_head_VE.defined()) {
        add_gradient_product(d_head_VE, d_logits_cV, part(hidden_nE), call.kernel);
      }
    }
    variable_list gradients{d_hidden_nE, at::Tensor(), d_head_VE, at::Tensor()};
    gradients.resize(gradients.size() + given.size() + 1);
    return gradients;
  }
};

template <class Term>
at::Tensor chunked(const LogitSource& source, const variable_list& given, const Term& term,
                   int64_t chunk_rows) {
  using Function = ChunkedTerm<Term>;
  return Function::apply(source.hidden_nE, source.head_VE.value, source.head_VE.leaf,
                         source.temperature_n, given,
                         typename Function::Call{term, source.head_VE.kernel, chunk_rows});
}

void check_source(const char* who, const LogitSource& source, int64_t chunk_rows) {
  const at::Tensor &hidden = source.hidden_nE, &head = source.head_VE.value;
  TORCH_CHECK(hidden.dim() == 2 && head.dim() == 2 && hidden.size(1) == head.size(1) &&
                  hidden.is_floating_point(),
              who, ": hidden ", hidden.sizes(), " ", hidden.scalar_type(),
              " does not fit the head ", head.sizes());
  check_alike(who, {{"hidden", hidden}, {"head", head}});
  check_same_device(who, {{"hidden", hidden}, {"temperature", source.temperature_n}});
  TORCH_CHECK(source.temperature_n.dim() == 1 && source.temperature_n.size(0) == hidden.size(0),
              who, ": ", hidden.size(0), " rows need temperatures [", hidden.size(0), "], got ",
              source.temperature_n.sizes());
  TORCH_CHECK(chunk_rows > 0, who, ": chunk_rows must be positive, got ", chunk_rows);
}

// The log of the mass that K log-probs leave to all other tokens, behind them. [n, K] -> [n, K + 1]
at::Tensor with_rest(const at::Tensor& logprobs_nK) {
  const at::Tensor taken = at::logsumexp(logprobs_nK, {-1}, /*keepdim=*/true);
  return at::cat({logprobs_nK, at::log(-at::expm1(taken.clamp_max(-kLeastRest)))}, -1);
}

}  // namespace

int64_t divergence_rows(int64_t vocab_size, int64_t chunk_bytes) {
  const int64_t row = std::max<int64_t>(1, vocab_size) * kTensorsOfChunk *
                      static_cast<int64_t>(c10::elementSize(at::kFloat));
  return std::max<int64_t>(1, chunk_bytes / row);
}

at::Tensor vocabulary_divergence(const LogitSource& student, const LogitSource& teacher,
                                 const Divergence& divergence, int64_t chunk_rows) {
  check_source("divergence: the student's", student, chunk_rows);
  check_source("divergence: the teacher's", teacher, chunk_rows);
  const at::Tensor &hidden = student.hidden_nE, &of_teacher = teacher.hidden_nE;
  TORCH_CHECK(hidden.size(0) == of_teacher.size(0), "divergence: ", hidden.size(0),
              " rows of the student, ", of_teacher.size(0), " of the teacher");
  check_same_device("divergence", {{"student", hidden}, {"teacher", of_teacher}});
  const int64_t words = student.head_VE.value.size(0);
  TORCH_CHECK(words <= teacher.head_VE.value.size(0), "divergence: a student of ", words,
              " words, a teacher of ", teacher.head_VE.value.size(0),
              "; expected a teacher with at least as many");
  const variable_list given{of_teacher, teacher.temperature_n.to(wide(of_teacher)),
                            teacher.head_VE.value.detach().narrow(0, 0, words)};
  return chunked(student, given, VocabularyTerm{divergence, teacher.head_VE.kernel}, chunk_rows);
}

at::Tensor logprobs_of_ids(const LogitSource& source, const at::Tensor& ids_nK,
                           int64_t chunk_rows) {
  check_source("logprobs_of_ids", source, chunk_rows);
  TORCH_CHECK(ids_nK.dim() == 2 && ids_nK.size(0) == source.hidden_nE.size(0) &&
                  ids_nK.scalar_type() == at::kLong,
              "logprobs_of_ids: ", source.hidden_nE.size(0), " rows need int64 ids [",
              source.hidden_nE.size(0), ", K], got ", ids_nK.sizes(), " ", ids_nK.scalar_type());
  check_same_device("logprobs_of_ids", {{"hidden", source.hidden_nE}, {"ids", ids_nK}});
  return chunked(source, {ids_nK}, IdsTerm{}, chunk_rows);
}

TopTokens top_tokens(const LogitSource& source, int64_t k, int64_t words, int64_t chunk_rows) {
  check_source("top_tokens", source, chunk_rows);
  TORCH_CHECK(k >= 1 && k <= words && words <= source.head_VE.value.size(0), "top_tokens: ", k,
              " tokens of ", words, " words, of a head of ", source.head_VE.value.size(0));
  const at::NoGradGuard data_only;
  const at::Tensor& hidden_nE = source.hidden_nE;
  const int64_t n = hidden_nE.size(0);
  Weight head(source.head_VE.value.narrow(0, 0, words));
  head.kernel = source.head_VE.kernel;
  const at::Tensor temperature = source.temperature_n.to(wide(hidden_nE));
  const TopTokens top{at::empty({n, k}, hidden_nE.options().dtype(at::kLong)),
                      at::empty({n, k}, hidden_nE.options().dtype(wide(hidden_nE)))};
  for (int64_t begin = 0; begin < n; begin += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, n - begin);
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
    const auto [logprobs, ids] =
        log_softmax_of(part(hidden_nE), head, part(temperature)).topk(k, -1);
    part(top.ids_nK).copy_(ids);
    part(top.logprobs_nK).copy_(logprobs);
  }
  return top;
}

at::Tensor top_divergence(const at::Tensor& student_nK, const at::Tensor& teacher_nK,
                          const Divergence& divergence) {
  TORCH_CHECK(student_nK.dim() == 2 && student_nK.sizes() == teacher_nK.sizes(),
              "top_divergence: log-probs ", student_nK.sizes(), " of the student, ",
              teacher_nK.sizes(), " of the teacher; expected [n, K] twice");
  return divergence_of_rows(with_rest(student_nK), with_rest(teacher_nK.detach()), divergence);
}

}  // namespace ringside::engine
