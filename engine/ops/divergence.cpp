#include "engine/ops/divergence.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

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

// Tempered logits of some rows over the head's words. Shapes: hidden [c, E], temperature [c].
at::Tensor tempered_logits(const at::Tensor& hidden_cE, const Weight& head_VE,
                           const at::Tensor& temperature_c) {
  if (head_VE.value.size(0) == 0) {  // of a rank without words
    return at::empty({hidden_cE.size(0), 0}, hidden_cE.options().dtype(wide(hidden_cE)));
  }
  at::Tensor logits_cV = head_logits(hidden_cE, head_VE).to(wide(hidden_cE));
  return logits_cV.div_(column(temperature_c));
}

// Log-sum-exp over all words from those over the words of each rank. Shapes: any, the same on every
// rank.
at::Tensor lse_of_ranks(const at::Tensor& own, const VocabularyPart& part) {
  return own.numel() == 0 ? own : at::logsumexp(part.ranks->all_gather(own, kDivergenceTag), 0);
}

// Sums over all words from those over the words of this rank.
at::Tensor sum_of_ranks(at::Tensor own, const VocabularyPart& part) {
  if (part.is_cut() && own.numel() > 0) {
    part.ranks->all_reduce_sum(own, kDivergenceTag);
  }
  return own;
}

// Log-probs over this rank's words from their tempered logits, which are overwritten. lse_c: the
// log-sum-exp over all words; undefined: this rank has all of them.
at::Tensor logprobs_by(at::Tensor logits_cV, const at::Tensor& lse_c) {
  return lse_c.defined() ? logits_cV.sub_(column(lse_c)) : at::log_softmax(logits_cV, -1);
}

// log m of two log-probs.
at::Tensor log_mixture(const at::Tensor& logp, const at::Tensor& logq, double mixture) {
  return at::logaddexp(logp + std::log1p(-mixture), logq + std::log(mixture));
}

// Sums over words that divergences are made of. Jensen-Shannon has two, of either side's divergence
// from the mixture; the others are one sum.
int64_t count_of_sums(const Divergence& divergence) {
  return divergence.kind == DivergenceKind::kJensenShannon ? 2 : 1;
}

// Shapes: log-probs [c, V] of some words -> [c, sums].
at::Tensor divergence_sums(const at::Tensor& logp, const at::Tensor& logq,
                           const Divergence& divergence) {
  switch (divergence.kind) {
    case DivergenceKind::kReverseKl:
      return (logp.exp() * (logp - logq)).sum(-1, /*keepdim=*/true);
    case DivergenceKind::kForwardKl:
      return (logq.exp() * (logq - logp)).sum(-1, /*keepdim=*/true);
    case DivergenceKind::kJensenShannon: {
      const at::Tensor logm = log_mixture(logp, logq, divergence.mixture);
      return at::stack({(logq.exp() * (logq - logm)).sum(-1), (logp.exp() * (logp - logm)).sum(-1)},
                       -1);
    }
  }
  TORCH_CHECK(false, "divergence: unknown kind");
}

// The divergence of each row from its sums over all words. Shapes: [c, sums] -> [c].
at::Tensor divergence_of_sums(const at::Tensor& sums, const Divergence& divergence) {
  return divergence.kind == DivergenceKind::kJensenShannon
             ? divergence.mixture * sums.select(-1, 0) +
                   (1.0 - divergence.mixture) * sums.select(-1, 1)
             : sums.select(-1, 0);
}

// p (difference - its mean under p).
at::Tensor centred(const at::Tensor& logp, at::Tensor difference, const at::Tensor& mean_c) {
  return difference.sub_(column(mean_c)).mul_(logp.exp());
}

// Gradient of the divergence towards the student's tempered logits, [c, V] of this rank's words.
// sums: of all words.
at::Tensor gradient_of_rows(const at::Tensor& logp, const at::Tensor& logq, const at::Tensor& sums,
                            const Divergence& divergence) {
  switch (divergence.kind) {
    case DivergenceKind::kReverseKl:
      return centred(logp, logp - logq, sums.select(-1, 0));
    case DivergenceKind::kForwardKl:
      return logp.exp().sub_(logq.exp());
    case DivergenceKind::kJensenShannon:
      return centred(logp, logp - log_mixture(logp, logq, divergence.mixture), sums.select(-1, 1))
          .mul_(1.0 - divergence.mixture);
  }
  TORCH_CHECK(false, "divergence: unknown kind");
}

// Some rows of what a term was given.
struct TermRows {
  const variable_list& given;
  int64_t begin;
  int64_t rows;
  at::Tensor part(const at::Tensor& x) const { return x.narrow(0, begin, rows); }
  at::Tensor part(std::size_t index) const { return part(given[index]); }
};

// given: the teacher's hidden states, its temperature, its head.
struct VocabularyTerm {
  Divergence divergence;
  ProductKernels teacher_kernel;

  int64_t sums(const variable_list& /*given*/) const { return count_of_sums(divergence); }
  // Tempered logits that the term reads beside the student's.
  variable_list further_logits(const TermRows& rows) const {
    Weight head(rows.given[2]);
    head.kernel = teacher_kernel;
    return {tempered_logits(rows.part(0), head, rows.part(1))};
  }
  // logp: of the student, and of further_logits().
  at::Tensor sums_of_rows(const variable_list& logp, const TermRows& /*rows*/) const {
    return divergence_sums(logp[0], logp[1], divergence);
  }
  at::Tensor values(const at::Tensor& sums_nS) const {
    return divergence_of_sums(sums_nS, divergence);
  }
  at::Tensor logits_gradient(const variable_list& logp, const at::Tensor& sums_cS,
                             const TermRows& /*rows*/, const at::Tensor& g_c) const {
    return gradient_of_rows(logp[0], logp[1], sums_cS, divergence).mul_(column(g_c));
  }
};

// given: the ids; of a cut vocabulary places among this rank's words, or -1. The log-prob of a word
// is then a sum with one term, on the rank that has the word.
struct IdsTerm {
  bool is_cut;

  int64_t sums(const variable_list& given) const { return given[0].size(1); }
  variable_list further_logits(const TermRows& /*rows*/) const { return {}; }
  at::Tensor sums_of_rows(const variable_list& logp, const TermRows& rows) const {
    const at::Tensor places = rows.part(0);
    if (!is_cut) {
      return logp[0].gather(1, places);
    }
    return logp[0].size(1) == 0 ? at::zeros(places.sizes(), logp[0].options())
                                : at::where(places.ge(0), logp[0].gather(1, places.clamp_min(0)),
                                            at::zeros({}, logp[0].options()));
  }
  at::Tensor values(const at::Tensor& sums_nK) const { return sums_nK; }
  at::Tensor logits_gradient(const variable_list& logp, const at::Tensor& /*sums_cK*/,
                             const TermRows& rows, const at::Tensor& g_cK) const {
    const at::Tensor places = rows.part(0);
    const at::Tensor gradient = logp[0].exp().mul_(-g_cK.sum(1, /*keepdim=*/true));
    return is_cut ? gradient.scatter_add_(1, places.clamp_min(0), g_cK * places.ge(0))
                  : gradient.scatter_add_(1, places, g_cK);
  }
};

// Numbers of each row as functions of its logits, which exist for a chunk of rows at a time. Both
// passes compute them. Of a cut vocabulary the forward brings together, over the ranks, log-sum-exp
// of each chunk and the term's sums at its end; the backward needs nothing but these.
template <class Term>
struct ChunkedTerm : torch::autograd::Function<ChunkedTerm<Term>> {
  struct Call {
    Term term;
    ProductKernels kernel;
    int64_t chunk_rows;
    bool is_cut;
  };
  static constexpr std::size_t kOwn = 5;   // saved tensors before those of the term
  static constexpr std::size_t kLeaf = 2;  // place among the arguments of forward

  // Tempered logits of the student, and further ones.
  static variable_list logits_of(const Call& call, const TermRows& rows,
                                 const at::Tensor& hidden_nE, const at::Tensor& head_VE,
                                 const at::Tensor& temperature_n) {
    Weight head(head_VE);
    head.kernel = call.kernel;
    variable_list logits = call.term.further_logits(rows);
    logits.insert(logits.begin(),
                  tempered_logits(rows.part(hidden_nE), head, rows.part(temperature_n)));
    return logits;
  }

  // Their log-probs. lse_cA: of each of them; undefined where this rank has all words.
  static variable_list logprobs_of(variable_list logits, const at::Tensor& lse_cA) {
    for (std::size_t a = 0; a < logits.size(); ++a) {
      logits[a] = logprobs_by(
          logits[a], lse_cA.defined() ? lse_cA.select(1, static_cast<int64_t>(a)) : at::Tensor());
    }
    return logits;
  }

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden_nE,
                            const at::Tensor& head_VE, const at::Tensor& /*head_leaf*/,
                            const at::Tensor& temperature_n, const variable_list& given,
                            const Call& call, const VocabularyPart& vocabulary) {
    const int64_t n = hidden_nE.size(0);
    const at::Tensor temperature = temperature_n.to(wide(hidden_nE));
    at::Tensor sums_nS =
        at::empty({n, call.term.sums(given)}, hidden_nE.options().dtype(wide(hidden_nE)));
    variable_list lse;
    for (int64_t begin = 0; begin < n; begin += call.chunk_rows) {
      const TermRows rows{given, begin, std::min(call.chunk_rows, n - begin)};
      variable_list logits = logits_of(call, rows, hidden_nE, head_VE, temperature);
      at::Tensor lse_cA;
      if (call.is_cut) {
        variable_list own;
        for (const at::Tensor& of_side : logits) {
          own.push_back(at::logsumexp(of_side, {-1}));
        }
        lse_cA = lse.emplace_back(lse_of_ranks(at::stack(own, 1), vocabulary));
      }
      rows.part(sums_nS).copy_(
          call.term.sums_of_rows(logprobs_of(std::move(logits), lse_cA), rows));
    }
    sums_nS = sum_of_ranks(std::move(sums_nS), vocabulary);
    variable_list saved{hidden_nE, head_VE, temperature, sums_nS,
                        lse.empty() ? at::Tensor() : at::cat(lse)};
    saved.insert(saved.end(), given.begin(), given.end());
    ctx->save_for_backward(saved);
    sp::hold(ctx, call);
    return call.term.values(sums_nS).clone();
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &hidden_nE = saved[0], &head_VE = saved[1], &temperature_n = saved[2];
    const at::Tensor &sums_nS = saved[3], &lse_nA = saved[4];
    const Call call = sp::held<Call>(ctx);
    const variable_list given(saved.begin() + kOwn, saved.end());
    const int64_t n = head_VE.size(0) == 0 ? 0 : hidden_nE.size(0);
    // On CUDA products of two dtypes do not exist.
    const at::ScalarType product = hidden_nE.is_cuda() ? hidden_nE.scalar_type() : wide(hidden_nE);
    const at::Tensor d_hidden_nE = n == 0 ? at::zeros_like(hidden_nE) : at::empty_like(hidden_nE);
    at::Tensor d_head_VE;
    if (ctx->needs_input_grad(kLeaf)) {
      d_head_VE = at::zeros(head_VE.sizes(), head_VE.options().dtype(wide(hidden_nE)));
    }
    for (int64_t begin = 0; begin < n; begin += call.chunk_rows) {
      const TermRows rows{given, begin, std::min(call.chunk_rows, n - begin)};
      const variable_list logp =
          logprobs_of(logits_of(call, rows, hidden_nE, head_VE, temperature_n),
                      lse_nA.defined() ? rows.part(lse_nA) : at::Tensor());
      const at::Tensor d_logits_cV =
          call.term.logits_gradient(logp, rows.part(sums_nS), rows, rows.part(grads[0]))
              .div_(column(rows.part(temperature_n)))
              .to(product);
      rows.part(d_hidden_nE)
          .copy_(
              product_with_columns(d_logits_cV.to(hidden_nE.scalar_type()), head_VE, call.kernel));
      if (d_head_VE.defined()) {
        add_gradient_product(d_head_VE, d_logits_cV, rows.part(hidden_nE), call.kernel);
      }
    }
    variable_list gradients{d_hidden_nE, at::Tensor(), d_head_VE, at::Tensor()};
    gradients.resize(gradients.size() + given.size() + 2);
    return gradients;
  }
};

template <class Term>
at::Tensor chunked(const LogitSource& source, const variable_list& given, const Term& term,
                   int64_t chunk_rows, const VocabularyPart& part) {
  using Function = ChunkedTerm<Term>;
  return Function::apply(
      source.hidden_nE, source.head_VE.value, source.head_VE.leaf, source.temperature_n, given,
      typename Function::Call{term, source.head_VE.kernel, chunk_rows, part.is_cut()}, part);
}

void check_part(const char* who, const LogitSource& source, const VocabularyPart& part) {
  TORCH_CHECK(!part.is_cut() || source.head_VE.value.size(0) == part.words.size(), who,
              ": a head of ", source.head_VE.value.size(0), " words for the part ",
              part.words.begin, " to ", part.words.end);
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

// The most likely tokens of all ranks. own: tempered logits of each rank's most likely ones.
TopTokens top_of_ranks(const TopTokens& own, const at::Tensor& lse_n1, const VocabularyPart& part) {
  const auto beside = [&](const at::Tensor& x_nK) {  // [n, ranks x K]
    return at::cat(part.ranks->all_gather(x_nK, kDivergenceTag).unbind(0), -1);
  };
  const auto [best_nK, places_nK] = beside(own.logprobs_nK).topk(own.ids_nK.size(1), -1);
  return {beside(own.ids_nK).gather(1, places_nK), best_nK - lse_of_ranks(lse_n1, part)};
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
                                 const Divergence& divergence, int64_t chunk_rows,
                                 const VocabularyPart& part) {
  check_source("divergence: the student's", student, chunk_rows);
  check_source("divergence: the teacher's", teacher, chunk_rows);
  check_part("divergence: the student's", student, part);
  check_part("divergence: the teacher's", teacher, part);
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
  return chunked(student, given, VocabularyTerm{divergence, teacher.head_VE.kernel}, chunk_rows,
                 part);
}

at::Tensor logprobs_of_ids(const LogitSource& source, const at::Tensor& ids_nK, int64_t chunk_rows,
                           const VocabularyPart& part) {
  check_source("logprobs_of_ids", source, chunk_rows);
  check_part("logprobs_of_ids", source, part);
  TORCH_CHECK(ids_nK.dim() == 2 && ids_nK.size(0) == source.hidden_nE.size(0) &&
                  ids_nK.scalar_type() == at::kLong,
              "logprobs_of_ids: ", source.hidden_nE.size(0), " rows need int64 ids [",
              source.hidden_nE.size(0), ", K], got ", ids_nK.sizes(), " ", ids_nK.scalar_type());
  check_same_device("logprobs_of_ids", {{"hidden", source.hidden_nE}, {"ids", ids_nK}});
  return chunked(source, {part.is_cut() ? part.places_of(ids_nK) : ids_nK}, IdsTerm{part.is_cut()},
                 chunk_rows, part);
}

TopTokens top_tokens(const LogitSource& source, int64_t k, int64_t words, int64_t chunk_rows,
                     const VocabularyPart& part) {
  check_source("top_tokens", source, chunk_rows);
  check_part("top_tokens", source, part);
  const int64_t all_words = part.is_cut() ? part.all_words : source.head_VE.value.size(0);
  TORCH_CHECK(k >= 1 && k <= words && words <= all_words, "top_tokens: ", k, " tokens of ", words,
              " words, of a head of ", all_words);
  const at::NoGradGuard data_only;
  const at::Tensor& hidden_nE = source.hidden_nE;
  const int64_t n = hidden_nE.size(0), first = part.is_cut() ? part.words.begin : 0;
  const int64_t own_words = std::clamp<int64_t>(words - first, 0, source.head_VE.value.size(0));
  Weight head(source.head_VE.value.narrow(0, 0, own_words));
  head.kernel = source.head_VE.kernel;
  const at::Tensor temperature = source.temperature_n.to(wide(hidden_nE));
  // Of this rank's words; a rank with fewer has some that are never likely.
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const auto numbers = hidden_nE.options().dtype(wide(hidden_nE));
  const TopTokens own{at::zeros({n, k}, hidden_nE.options().dtype(at::kLong)),
                      at::full({n, k}, kNever, numbers)};
  const at::Tensor lse_n1 = at::empty({n, 1}, numbers);
  const int64_t own_k = std::min(k, own_words);
  for (int64_t begin = 0; begin < n; begin += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, n - begin);
    const auto chunk = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
    const at::Tensor logits_cV = tempered_logits(chunk(hidden_nE), head, chunk(temperature));
    const auto [best, ids] =
        (part.is_cut() ? logits_cV : at::log_softmax(logits_cV, -1)).topk(own_k, -1);
    chunk(own.ids_nK).narrow(1, 0, own_k).copy_(ids + first);
    chunk(own.logprobs_nK).narrow(1, 0, own_k).copy_(best);
    if (part.is_cut()) {
      chunk(lse_n1).copy_(at::logsumexp(logits_cV, {-1}, /*keepdim=*/true));
    }
  }
  return part.is_cut() && n > 0 ? top_of_ranks(own, lse_n1, part) : own;
}

at::Tensor top_divergence(const at::Tensor& student_nK, const at::Tensor& teacher_nK,
                          const Divergence& divergence) {
  TORCH_CHECK(student_nK.dim() == 2 && student_nK.sizes() == teacher_nK.sizes(),
              "top_divergence: log-probs ", student_nK.sizes(), " of the student, ",
              teacher_nK.sizes(), " of the teacher; expected [n, K] twice");
  const at::Tensor sums =
      divergence_sums(with_rest(student_nK), with_rest(teacher_nK.detach()), divergence);
  return divergence_of_sums(sums, divergence);
}

}  // namespace ringside::engine
