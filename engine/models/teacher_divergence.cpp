#include "engine/models/teacher_divergence.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <vector>

namespace ringside::engine {
namespace {

int64_t chunk_rows_of(const Decoder& student) {
  return divergence_rows(student.config().vocab_size,
                         student.activation_options().logit_chunk_bytes);
}

// The teacher's head, outside autograd. Gathered where the teacher is sharded.
Weight head_of(const Decoder& teacher, const at::Tensor& hidden_nF) {
  const at::NoGradGuard data_only;
  Weight head;
  run_head(teacher, hidden_nF, [&](const std::vector<Weight>& weights, const at::Tensor&) {
    head = weights[0];
    return std::vector<at::Tensor>{};
  });
  return head;
}

}  // namespace

at::Tensor divergence_from(const Decoder& student, const at::Tensor& hidden_nE,
                           const at::Tensor& temperature_n, const Decoder& teacher,
                           const at::Tensor& teacher_hidden_nF, const Divergence& divergence) {
  const LogitSource of_teacher{teacher_hidden_nF, head_of(teacher, teacher_hidden_nF),
                               logits_divisor(teacher, temperature_n)};
  const auto run = [&](const std::vector<Weight>& weights, const at::Tensor& hidden) {
    const LogitSource source{hidden, weights[0], logits_divisor(student, temperature_n)};
    return std::vector<at::Tensor>{
        vocabulary_divergence(source, of_teacher, divergence, chunk_rows_of(student))};
  };
  return run_head(student, hidden_nE, run)[0];
}

at::Tensor divergence_from(const Decoder& student, const at::Tensor& hidden_nE,
                           const at::Tensor& temperature_n, const TopTokens& teacher,
                           const Divergence& divergence) {
  const auto run = [&](const std::vector<Weight>& weights, const at::Tensor& hidden) {
    const LogitSource source{hidden, weights[0], logits_divisor(student, temperature_n)};
    return std::vector<at::Tensor>{logprobs_of_ids(source, teacher.ids_nK, chunk_rows_of(student))};
  };
  return top_divergence(run_head(student, hidden_nE, run)[0], teacher.logprobs_nK, divergence);
}

TopTokens top_tokens_of(const Decoder& teacher, const at::Tensor& hidden_nF,
                        const at::Tensor& temperature_n, int64_t k, int64_t words) {
  const LogitSource source{hidden_nF, head_of(teacher, hidden_nF),
                           logits_divisor(teacher, temperature_n)};
  return top_tokens(source, k, words,
                    divergence_rows(words, teacher.activation_options().logit_chunk_bytes));
}

}  // namespace ringside::engine
