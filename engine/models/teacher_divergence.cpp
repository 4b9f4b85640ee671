#include "engine/models/teacher_divergence.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

namespace ringside::engine {
namespace {

// The same on every tensor-parallel rank: for the words of the rank with the most.
int64_t chunk_rows_of(const Decoder& decoder, int64_t words) {
  const VocabularyPart part = vocabulary_part(decoder);
  const int64_t ranks = part.is_cut() ? part.ranks->size() : 1;
  return divergence_rows((words + ranks - 1) / ranks,
                         decoder.activation_options().logit_chunk_bytes);
}

// Outside autograd. Gathered where the teacher is sharded.
Weight head_of(const Decoder& teacher, const at::Tensor& hidden_nF) {
  const at::NoGradGuard data_only;
  Weight head;
  run_head(teacher, hidden_nF, [&](const std::vector<Weight>& weights, const at::Tensor&) {
    head = weights[0];
    return std::vector<at::Tensor>{};
  });
  return head;
}

int64_t overlap(const sp::Range& a, const sp::Range& b) {
  return std::max<int64_t>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

// The teacher's rows of the words that this tensor-parallel rank has of the student's. A teacher of
// more words is cut elsewhere, so ranks send each other the rows between the two cuts.
Weight rows_of_words(Weight head, const VocabularyPart& teacher, const VocabularyPart& student) {
  if (!student.is_cut() || teacher.all_words == student.all_words) {
    return head;
  }
  const at::NoGradGuard data_only;
  const int64_t ranks = student.ranks->size(), width = head.value.size(1);
  std::vector<int64_t> sent, received;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    sent.push_back(width * overlap(teacher.words, sp::even_part(student.all_words, ranks, rank)));
    received.push_back(width *
                       overlap(student.words, sp::even_part(teacher.all_words, ranks, rank)));
  }
  const int64_t rows = overlap(teacher.words, {0, student.all_words});
  const at::Tensor own = head.value.detach().narrow(0, 0, rows).contiguous().view({-1});
  Weight moved(student.ranks->all_to_all(own, sent, received, kDivergenceTag).view({-1, width}));
  moved.kernel = head.kernel;
  return moved;
}

// Outside autograd.
at::Tensor all_entries(const at::Tensor& own, const RowParts& ranks) {
  return ranks.is_cut() ? ranks.ranks->all_gather_rows(own, ranks.rows_of, kDivergenceTag) : own;
}

// What the logits of all entries come from, in the gathered order of tensor-parallel ranks.
LogitSource source_of(const Decoder& decoder, const at::Tensor& hidden_nE, const Weight& head,
                      const at::Tensor& temperature_n, const EntryParts& entries) {
  return {hidden_nE, head, entries.gathered_order(logits_divisor(decoder, temperature_n))};
}

}  // namespace

at::Tensor divergence_from(const Decoder& student, const ScoredEntries& of_student,
                           const Decoder& teacher, const at::Tensor& teacher_hidden_nF,
                           const Divergence& divergence) {
  const EntryParts& entries = of_student.entries;
  const VocabularyPart part = vocabulary_part(student);
  const at::Tensor hidden_nF = all_entries(teacher_hidden_nF, entries.ranks);
  const LogitSource of_teacher =
      source_of(teacher, hidden_nF,
                rows_of_words(head_of(teacher, hidden_nF), vocabulary_part(teacher), part),
                of_student.temperature_n, entries);
  const auto run = [&](const std::vector<Weight>& weights, const at::Tensor& hidden) {
    return std::vector<at::Tensor>{vocabulary_divergence(
        source_of(student, hidden, weights[0], of_student.temperature_n, entries), of_teacher,
        divergence, chunk_rows_of(student, part.all_words), part)};
  };
  return entries.entry_order(run_head(student, of_student.hidden_nE, run)[0]);
}

at::Tensor divergence_from(const Decoder& student, const ScoredEntries& of_student,
                           const TopTokens& teacher, const Divergence& divergence) {
  const EntryParts& entries = of_student.entries;
  const VocabularyPart part = vocabulary_part(student);
  const at::Tensor ids_nK = entries.gathered_order(teacher.ids_nK);
  const auto run = [&](const std::vector<Weight>& weights, const at::Tensor& hidden) {
    return std::vector<at::Tensor>{
        logprobs_of_ids(source_of(student, hidden, weights[0], of_student.temperature_n, entries),
                        ids_nK, chunk_rows_of(student, part.all_words), part)};
  };
  const at::Tensor logprobs_nK = run_head(student, of_student.hidden_nE, run)[0];
  return top_divergence(entries.entry_order(logprobs_nK), teacher.logprobs_nK, divergence);
}

TopTokens top_tokens_of(const Decoder& teacher, const ScoredEntries& of_teacher, int64_t k,
                        int64_t words) {
  const at::NoGradGuard data_only;
  const EntryParts& entries = of_teacher.entries;
  const VocabularyPart part = vocabulary_part(teacher);
  const at::Tensor& hidden_nF = of_teacher.hidden_nE;
  const TopTokens top = top_tokens(
      source_of(teacher, hidden_nF, head_of(teacher, hidden_nF), of_teacher.temperature_n, entries),
      k, words, chunk_rows_of(teacher, part.all_words), part);
  return {entries.entry_order(top.ids_nK), entries.entry_order(top.logprobs_nK)};
}

}  // namespace ringside::engine
