// Guards divergences over a vocabulary that is cut over tensor-parallel ranks: a sum over one
// rank's words alone, or a token counted for the wrong rank, distils towards something else.
#include <ATen/ATen.h>

#include "engine/ops/divergence.h"
#include "tests/engine/vocabulary_parts.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

const Divergence kKinds[] = {{DivergenceKind::kReverseKl, 0.5},
                             {DivergenceKind::kForwardKl, 0.5},
                             {DivergenceKind::kJensenShannon, 0.3}};
constexpr int64_t kRows = 11;

// Both sides over all words, and the gradient of the divergence. far: logits so far apart that one
// rank has nearly all of a distribution.
struct Sides {
  LogitSource student, teacher;
  at::Tensor g_n;
};

LogitSource random_side(int64_t rows, int64_t width, int64_t words, double far) {
  return {at::randn({rows, width}, at::kDouble) * far,
          Weight(at::randn({words, width}, at::kDouble)), at::rand({rows}, at::kDouble) + 0.5};
}

Sides make_sides(int64_t words, double far = 1.0, int64_t rows = kRows) {
  at::manual_seed(5);
  return {random_side(rows, 5, words, far), random_side(rows, 7, words, far),
          at::randn({rows}, at::kDouble)};
}

// The words of one rank; all without a cut.
LogitSource words_of(const LogitSource& side, const VocabularyPart& part) {
  const at::Tensor& head = side.head_VE.value;
  return {side.hidden_nE.detach().clone(),
          Weight((part.is_cut() ? head.narrow(0, part.words.begin, part.words.size()) : head)
                     .detach()
                     .clone()),
          side.temperature_n};
}

struct Found {
  at::Tensor divergence_n, d_hidden, d_head;
};

// k: most likely tokens; 0: over the vocabulary.
Found distil(const Sides& sides, const Divergence& kind, int64_t k, int64_t chunk_rows,
             const VocabularyPart& part = {}) {
  const LogitSource student = words_of(sides.student, part);
  const LogitSource teacher = words_of(sides.teacher, part);
  student.hidden_nE.requires_grad_();
  student.head_VE.leaf.requires_grad_();
  at::Tensor divergence_n;
  if (k == 0) {
    divergence_n = vocabulary_divergence(student, teacher, kind, chunk_rows, part);
  } else {
    const TopTokens top =
        top_tokens(teacher, k, sides.teacher.head_VE.value.size(0), chunk_rows, part);
    divergence_n = top_divergence(logprobs_of_ids(student, top.ids_nK, chunk_rows, part),
                                  top.logprobs_nK, kind);
  }
  (divergence_n * sides.g_n).sum().backward();
  return {divergence_n.detach(), student.hidden_nE.grad(), student.head_VE.leaf.grad()};
}

void check_found(const Found& own, const Found& whole, const VocabularyPart& part) {
  TORCH_CHECK(max_abs_diff(own.divergence_n, whole.divergence_n) < 1e-11, "divergences");
  TORCH_CHECK(
      max_abs_diff(own.d_head, whole.d_head.narrow(0, part.words.begin, part.words.size())) < 1e-11,
      "gradient of the head");
  at::Tensor d_hidden = own.d_hidden.clone();
  part.ranks->all_reduce_sum(d_hidden, "test");
  TORCH_CHECK(max_abs_diff(d_hidden, whole.d_hidden) < 1e-11, "gradient of the hidden states");
}

TEST_CASE("divergences over a vocabulary in parts are those over the whole one, gradients too") {
  for (const auto& [words, ranks] :
       std::vector<std::pair<int64_t, int64_t>>{{50, 2}, {23, 3}, {3, 4}}) {
    const Sides sides = make_sides(words);
    for (const Divergence& kind : kKinds) {
      for (const int64_t k : {int64_t{0}, int64_t{1}, std::min<int64_t>(words, 9)}) {
        const Found whole = distil(sides, kind, k, 100);
        for (const int64_t chunk_rows : {int64_t{1}, int64_t{4}, kRows}) {
          CAPTURE(words, ranks, static_cast<int>(kind.kind), k, chunk_rows);
          test::run_vocabulary_parts(ranks, words, [&](const VocabularyPart& part) {
            check_found(distil(sides, kind, k, chunk_rows, part), whole, part);
          });
        }
      }
    }
  }
}

TEST_CASE("the most likely tokens of all ranks are those of the whole vocabulary, in order") {
  const Sides sides = make_sides(23);
  const LogitSource& teacher = sides.teacher;
  for (const int64_t words : {23, 20, 9}) {  // the student's; the last rank may have none of them
    const TopTokens whole = top_tokens(teacher, 9, words, 100);
    test::run_vocabulary_parts(3, 23, [&](const VocabularyPart& part) {
      const TopTokens found = top_tokens(words_of(teacher, part), 9, words, 4, part);
      TORCH_CHECK(at::equal(found.ids_nK, whole.ids_nK), "ids of ", words, " words");
      TORCH_CHECK(max_abs_diff(found.logprobs_nK, whole.logprobs_nK) < 1e-12, "log-probs");
    });
  }
}

TEST_CASE("parts with none of a distribution, and no entry, keep divergences finite") {
  const Sides far = make_sides(12, /*far=*/100.0), none = make_sides(12, 1.0, /*rows=*/0);
  for (const Divergence& kind : kKinds) {
    const Found whole = distil(far, kind, 0, 4);
    test::run_vocabulary_parts(4, 12, [&](const VocabularyPart& part) {
      const Found own = distil(far, kind, 0, 4, part);
      TORCH_CHECK(max_abs_diff(own.divergence_n, whole.divergence_n) < 1e-9, "divergences");
      TORCH_CHECK(own.d_hidden.isfinite().all().item<bool>(), "gradient");
      TORCH_CHECK(distil(none, kind, 0, 4, part).d_head.abs().sum().item<double>() == 0.0);
      TORCH_CHECK(distil(none, kind, 3, 4, part).divergence_n.numel() == 0);
    });
  }
}

TEST_CASE("a head with other words than its part is refused") {
  const Sides sides = make_sides(12);
  test::run_vocabulary_parts(2, 12, [&](const VocabularyPart& part) {
    std::string error;
    try {
      vocabulary_divergence(sides.student, words_of(sides.teacher, part), kKinds[0], 4, part);
    } catch (const c10::Error& e) {
      error = e.what();
    }
    TORCH_CHECK(error.find("a head of 12 words for the part") != std::string::npos, error);
  });
}

}  // namespace
}  // namespace ringside::engine
