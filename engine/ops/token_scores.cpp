#include "engine/ops/token_scores.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "engine/ops/checks.h"
#include "engine/ops/dispatch.h"
#include "engine/ops/head_logits.h"
#include "engine/ops/products.h"
#include "sp/mesh/saved_context.h"

namespace ringside::engine {
namespace {

at::ScalarType score_dtype(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void token_scores_on_cpu(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                         const at::Tensor& temperature_c, const at::Tensor& logprobs_c,
                         const at::Tensor& entropy_c, const at::Tensor& lse_c) {
  at::Tensor tempered_cV = logits_cV.to(score_dtype(logits_cV)) / temperature_c.unsqueeze(1);
  const at::Tensor logp_cV = at::log_softmax(tempered_cV, -1);
  const at::Tensor targets_c1 = targets_c.unsqueeze(1);
  logprobs_c.copy_(logp_cV.gather(1, targets_c1).squeeze(1));
  lse_c.copy_(tempered_cV.gather(1, targets_c1).squeeze(1)).sub_(logprobs_c);
  at::exp_out(tempered_cV, logp_cV);  // in the tempered logits' place
  entropy_c.copy_(tempered_cV.mul_(logp_cV).sum(1).neg_());
}

// d logits = g_lp * (onehot - p) - g_H * p * (log p + H), without the first one-hot. p_cV: becomes
// the result. logp_cV: is overwritten.
void add_scores_gradient(at::Tensor& p_cV, at::Tensor& logp_cV, const at::Tensor& entropy_c,
                         const at::Tensor& g_logprobs_c,
                         const std::optional<at::Tensor>& g_entropy_c) {
  if (g_entropy_c) {
    logp_cV.add_(entropy_c.unsqueeze(1))
        .mul_(g_entropy_c->unsqueeze(1))
        .add_(g_logprobs_c.unsqueeze(1));
    p_cV.mul_(logp_cV.neg_());
  } else {
    p_cV.mul_(g_logprobs_c.neg().unsqueeze(1));
  }
}

// The log-softmax is computed again: with the log-sum-exp alone it would be rounded otherwise.
void token_scores_backward_on_cpu(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                                  const at::Tensor& temperature_c, const at::Tensor& /*lse_c*/,
                                  const at::Tensor& entropy_c, const at::Tensor& g_logprobs_c,
                                  const std::optional<at::Tensor>& g_entropy_c) {
  at::Tensor grad_cV = logits_cV.to(score_dtype(logits_cV));
  at::Tensor logp_cV = at::log_softmax(grad_cV.div_(temperature_c.unsqueeze(1)), -1);
  at::exp_out(grad_cV, logp_cV);
  add_scores_gradient(grad_cV, logp_cV, entropy_c, g_logprobs_c, g_entropy_c);
  grad_cV.scatter_add_(1, targets_c.unsqueeze(1), g_logprobs_c.unsqueeze(1));
  logits_cV.copy_(grad_cV);
}

void token_scores_part_backward_on_cpu(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                                       const at::Tensor& temperature_c, const at::Tensor& lse_c,
                                       const at::Tensor& entropy_c, const at::Tensor& g_logprobs_c,
                                       const std::optional<at::Tensor>& g_entropy_c) {
  at::Tensor logp_cV = logits_cV.to(score_dtype(logits_cV)) / temperature_c.unsqueeze(1);
  logp_cV.sub_(lse_c.unsqueeze(1));
  at::Tensor grad_cV = logp_cV.exp();
  add_scores_gradient(grad_cV, logp_cV, entropy_c, g_logprobs_c, g_entropy_c);
  const at::Tensor here_c = targets_c.ge(0).to(g_logprobs_c.scalar_type());
  grad_cV.scatter_add_(1, targets_c.clamp_min(0).unsqueeze(1),
                       (g_logprobs_c * here_c).unsqueeze(1));
  logits_cV.copy_(grad_cV);
}

TORCH_LIBRARY_FRAGMENT(ringside, m) {
  define_operator(m,
                  "token_scores(Tensor logits, Tensor targets, Tensor temperature, Tensor(a!) "
                  "logprobs, Tensor(b!) entropy, Tensor(c!) lse) -> ()",
                  TORCH_FN(token_scores_on_cpu));
  define_operator(m,
                  "token_scores_backward(Tensor(a!) logits, Tensor targets, Tensor temperature, "
                  "Tensor lse, Tensor entropy, Tensor g_logprobs, Tensor? g_entropy) -> ()",
                  TORCH_FN(token_scores_backward_on_cpu));
  define_operator(m,
                  "token_scores_part_backward(Tensor(a!) logits, Tensor targets, Tensor "
                  "temperature, Tensor lse, Tensor entropy, Tensor g_logprobs, Tensor? g_entropy) "
                  "-> ()",
                  TORCH_FN(token_scores_part_backward_on_cpu));
}

}  // namespace

namespace operators {

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

void token_scores_part_backward(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                                const at::Tensor& temperature_c, const at::Tensor& lse_c,
                                const at::Tensor& entropy_c, const at::Tensor& g_logprobs_c,
                                const std::optional<at::Tensor>& g_entropy_c) {
  static const Operator<decltype(token_scores_part_backward)> op(
      "ringside::token_scores_part_backward");
  op(logits_cV, targets_c, temperature_c, lse_c, entropy_c, g_logprobs_c, g_entropy_c);
}

}  // namespace operators

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType score_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// The dtype in which a chunk's logits and their gradient are kept. Not rounded but on CUDA, so that
// the head's gradient, too, is summed from parts that were not rounded.
at::ScalarType logits_dtype(c10::Device device, at::ScalarType hidden) {
  return device.is_cuda() ? hidden : score_dtype(hidden);
}

constexpr std::size_t kHeadLeaf = 2;  // place among the arguments of forward
constexpr const char* kFirstLogits = "first_logits";

at::Tensor logits_by(ProductKernels kernel, const at::Tensor& hidden_cE,
                     const at::Tensor& head_VE) {
  Weight head(head_VE);
  head.kernel = kernel;
  return head_logits(hidden_cE, head);
}

// What the two passes share beside tensors that have gradients.
struct ScoresCall {
  int64_t chunk_rows = 0;
  ProductKernels kernel = {};
  bool is_cut = false;  // the vocabulary: targets are places among this rank's words, or -1
  KeptSets kept = {};

  // Of the entries from `first` on.
  at::Tensor logits(const at::Tensor& hidden_cE, const at::Tensor& head_VE, int64_t first) const {
    at::Tensor logits_cV = logits_by(kernel, hidden_cE, head_VE);
    keep_only(logits_cV, first, kept);
    return logits_cV;
  }
};

// The logits that the forward kept. Computed again in a second backward, as the first one's
// gradient took their place.
at::Tensor take_first_logits(AutogradContext& ctx, const ScoresCall& call,
                             const at::Tensor& hidden_cE, const at::Tensor& head_VE) {
  const at::Tensor first = std::exchange(ctx.saved_data[kFirstLogits], at::Tensor()).toTensor();
  return first.defined() ? first : call.logits(hidden_cE, head_VE, 0);
}

// For each entry a word of this rank that may stand for its target: one of its set, if it has any
// here. The log-sum-exp is taken from it, and would be lost beside the lowered logit of another.
at::Tensor a_word_of_each(const KeptSets& kept, int64_t n, const at::Tensor& targets_n) {
  at::Tensor word_n = at::zeros({n}, targets_n.options());
  if (kept.any()) {
    word_n.scatter_reduce_(0, kept.entry_m.to(at::kLong), kept.word_m.to(at::kLong), "amax");
  }
  return word_n;
}

struct TokenScoresFunction : torch::autograd::Function<TokenScoresFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden_nE,
                               const at::Tensor& head_VE, const at::Tensor& /*head_leaf*/,
                               const at::Tensor& targets_n, const at::Tensor& temperature_n,
                               const ScoresCall& call, const VocabularyPart& vocabulary,
                               bool has_backward) {
    const int64_t n = hidden_nE.size(0), chunk_rows = call.chunk_rows;
    const auto options = hidden_nE.options().dtype(score_dtype(hidden_nE.scalar_type()));
    const at::Tensor temperature = temperature_n.to(options);
    const PartialScores scores = new_scores(n, /*is_written=*/head_VE.size(0) > 0, options);
    // Targets that another rank has count as one of this rank's: merge_scores() does not read them.
    const at::Tensor own_targets =
        call.is_cut ? at::where(targets_n.ge(0), targets_n, a_word_of_each(call.kept, n, targets_n))
                    : targets_n;
    // The first chunk comes last and its logits stay: the backward begins with them. So one chunk
    // is computed once, and no more logits exist at a time than with all of them computed again.
    at::Tensor first_logits_cV;
    const int64_t chunks = head_VE.size(0) == 0 ? 0 : (n + chunk_rows - 1) / chunk_rows;
    for (int64_t begin = (chunks - 1) * chunk_rows; begin >= 0; begin -= chunk_rows) {
      const int64_t rows = std::min(chunk_rows, n - begin);
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
      const at::Tensor logits_cV = call.logits(part(hidden_nE), head_VE, begin);
      operators::token_scores(logits_cV, part(own_targets), part(temperature),
                              part(scores.logprobs_n), part(scores.entropy_n), part(scores.lse_n));
      if (begin == 0 && has_backward) {
        first_logits_cV = logits_cV;
      }
    }
    if (call.is_cut) {
      merge_scores(scores, targets_n, vocabulary);
    }
    ctx->set_materialize_grads(false);
    ctx->save_for_backward(
        {hidden_nE, head_VE, targets_n, temperature, scores.entropy_n, scores.lse_n});
    ctx->saved_data[kFirstLogits] = first_logits_cV;
    sp::hold(ctx, call);
    return {scores.logprobs_n, scores.entropy_n};
  }

  // is_written: every element will be; otherwise the scores are those of a rank without words.
  static PartialScores new_scores(int64_t n, bool is_written, const at::TensorOptions& options) {
    if (is_written) {
      return {at::empty({n}, options), at::empty({n}, options), at::empty({n}, options)};
    }
    return {at::zeros({n}, options), at::zeros({n}, options),
            at::full({n}, -std::numeric_limits<double>::infinity(), options)};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &hidden_nE = saved[0], &head_VE = saved[1], &targets_n = saved[2];
    const at::Tensor &temperature_n = saved[3], &entropy_n = saved[4], &lse_n = saved[5];
    const auto call = sp::held<ScoresCall>(ctx);
    const int64_t chunk_rows = call.chunk_rows;
    const at::ScalarType acc = entropy_n.scalar_type();
    const int64_t n = head_VE.size(0) == 0 ? 0 : hidden_nE.size(0);
    const at::Tensor g_lp_n =
        grads[0].defined() ? grads[0] / temperature_n : at::zeros_like(entropy_n);
    const at::Tensor g_entropy_n = grads[1].defined() ? grads[1] / temperature_n : at::Tensor();
    at::Tensor d_hidden_nE = n == 0 ? at::zeros_like(hidden_nE) : at::empty_like(hidden_nE);
    // Many chunks add to the head's gradient, so it is summed in fp32 for every compute dtype.
    at::Tensor d_head_VE;
    if (ctx->needs_input_grad(kHeadLeaf)) {
      d_head_VE = at::zeros(head_VE.sizes(), head_VE.options().dtype(acc));
    }
    const auto logits_gradient =
        call.is_cut ? operators::token_scores_part_backward : operators::token_scores_backward;
    for (int64_t begin = 0; begin < n; begin += chunk_rows) {
      const int64_t rows = std::min(chunk_rows, n - begin);
      const auto part = [&, first = begin](const at::Tensor& x) {
        return x.narrow(0, first, rows);
      };
      const at::Tensor hidden_cE = part(hidden_nE);
      // The gradient of the logits takes their place.
      const at::Tensor d_logits_cV = begin == 0 ? take_first_logits(*ctx, call, hidden_cE, head_VE)
                                                : call.logits(hidden_cE, head_VE, begin);
      logits_gradient(d_logits_cV, part(targets_n), part(temperature_n), part(lse_n),
                      part(entropy_n), part(g_lp_n),
                      g_entropy_n.defined() ? std::make_optional(part(g_entropy_n)) : std::nullopt);
      part(d_hidden_nE)
          .copy_(
              product_with_columns(d_logits_cV.to(hidden_nE.scalar_type()), head_VE, call.kernel));
      if (d_head_VE.defined()) {
        add_gradient_product(d_head_VE, d_logits_cV, hidden_cE, call.kernel);
      }
    }
    return {d_hidden_nE,  at::Tensor(), d_head_VE,    at::Tensor(),
            at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

int64_t bytes_per_logit(const at::TensorOptions& hidden) {
  const at::ScalarType dtype = c10::typeMetaToScalarType(hidden.dtype());
  const auto kept = static_cast<int64_t>(c10::elementSize(logits_dtype(hidden.device(), dtype)));
  // The CPU's operators hold the logits, their log-softmax and its exponential at once. A kernel of
  // our own works in place.
  if (hidden.device().is_cpu()) {
    return 3 * kept;
  }
  const auto product = static_cast<int64_t>(c10::elementSize(dtype));
  return product == kept ? kept : kept + product;
}

int64_t token_score_rows(const at::TensorOptions& hidden, int64_t vocab_size, int64_t chunk_bytes) {
  const bool doubles = hidden.dtype() == at::kDouble;
  const int64_t bytes = bytes_per_logit(doubles ? hidden.dtype(at::kFloat) : hidden);
  return std::max<int64_t>(1, chunk_bytes / (std::max<int64_t>(1, vocab_size) * bytes));
}

TokenScores token_scores(const at::Tensor& hidden_nE, const Weight& head,
                         const at::Tensor& targets_n, const at::Tensor& temperature_n,
                         int64_t chunk_rows, const VocabularyPart& part, KeptSets kept) {
  const at::Tensor& head_VE = head.value;
  TORCH_CHECK(hidden_nE.dim() == 2 && head_VE.dim() == 2 && hidden_nE.size(1) == head_VE.size(1) &&
                  hidden_nE.is_floating_point(),
              "token_scores: hidden ", hidden_nE.sizes(), " ", hidden_nE.scalar_type(),
              " does not fit the head ", head_VE.sizes());
  check_alike("token_scores", {{"hidden", hidden_nE}, {"head", head_VE}});
  check_same_device(
      "token_scores",
      {{"hidden", hidden_nE}, {"targets", targets_n}, {"temperature", temperature_n}});
  const int64_t n = hidden_nE.size(0);
  TORCH_CHECK(
      targets_n.dim() == 1 && targets_n.size(0) == n && targets_n.scalar_type() == at::kLong,
      "token_scores: ", n, " rows need int64 targets [", n, "], got ", targets_n.sizes(), " ",
      targets_n.scalar_type());
  TORCH_CHECK(temperature_n.dim() == 1 && temperature_n.size(0) == n, "token_scores: ", n,
              " rows need temperatures [", n, "], got ", temperature_n.sizes());
  TORCH_CHECK(chunk_rows > 0, "token_scores: chunk_rows must be positive, got ", chunk_rows);
  TORCH_CHECK(!part.is_cut() || head_VE.size(0) == part.words.size(), "token_scores: a head of ",
              head_VE.size(0), " words for the part ", part.words.begin, " to ", part.words.end);
  TORCH_CHECK(!kept.any() || static_cast<int64_t>(kept.begin.size()) == n + 1, "token_scores: ", n,
              " rows need as many kept sets, got ", static_cast<int64_t>(kept.begin.size()) - 1);
  if (kept.any() && part.is_cut()) {
    kept.word_m = part.places_of(kept.word_m.to(at::kLong)).to(at::kInt);
  }
  const variable_list scores = TokenScoresFunction::apply(
      hidden_nE, head_VE, head.leaf, part.is_cut() ? part.places_of(targets_n) : targets_n,
      temperature_n, ScoresCall{chunk_rows, head.kernel, part.is_cut(), std::move(kept)}, part,
      at::GradMode::is_enabled());
  return {scores[0], scores[1]};
}

}  // namespace ringside::engine
