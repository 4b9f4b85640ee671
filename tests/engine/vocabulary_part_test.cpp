// Guards embedding and head cut over tensor-parallel ranks: a word of another rank's part taken for
// an own one, or a sum over ranks in the wrong place, is a loss that looks fine.
#include "engine/ops/vocabulary_part.h"

#include <ATen/ATen.h>

#include <set>

#include "engine/nn/linear.h"
#include "engine/nn/tensor_rows.h"
#include "engine/ops/token_scores.h"
#include "engine/params/sharding.h"
#include "tests/engine/vocabulary_parts.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

constexpr int64_t kHidden = 6;

struct Problem {
  at::Tensor hidden, head, targets, temperature, g_lp, g_entropy;
  KeptSets kept = {};
};

Problem make_problem(int64_t n, int64_t words, at::ScalarType dtype = at::kDouble) {
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(7);
  const auto normal = [&](std::vector<int64_t> shape) {
    return at::randn(shape, random, at::kDouble);
  };
  Problem p{normal({n, kHidden}).to(dtype),
            normal({words, kHidden}).to(dtype),
            at::randint(0, words, {n}, random, at::kLong),
            at::rand({n}, random, at::kDouble) + 0.5,
            normal({n}),
            normal({n})};
  // The first and last words of parts among the targets.
  for (int64_t i = 0; i < n && i < words; ++i) {
    p.targets[i] = i % 2 == 0 ? i / 2 : words - 1 - i / 2;
  }
  return p;
}

struct Solution {
  at::Tensor logprobs, entropy, d_hidden, d_head;
};

// part: none for the whole vocabulary.
Solution solve(const Problem& p, int64_t chunk_rows, const VocabularyPart& part = {}) {
  const at::Tensor hidden = p.hidden.clone().requires_grad_();
  const at::Tensor head =
      (part.is_cut() ? p.head.narrow(0, part.words.begin, part.words.size()) : p.head)
          .clone()
          .requires_grad_();
  const TokenScores scores =
      token_scores(hidden, head, p.targets, p.temperature, chunk_rows, part, p.kept);
  const auto sums = scores.logprobs_n.options();
  ((scores.logprobs_n * p.g_lp.to(sums)).sum() + (scores.entropy_n * p.g_entropy.to(sums)).sum())
      .backward();
  return {scores.logprobs_n.detach(), scores.entropy_n.detach(), hidden.grad(), head.grad()};
}

// Throws unless a rank's part of the vocabulary gives the scores of all of it, and its part of the
// gradients.
void check_part(const Problem& p, const Solution& whole, int64_t chunk_rows,
                const VocabularyPart& part) {
  const Solution own = solve(p, chunk_rows, part);
  TORCH_CHECK(max_abs_diff(own.logprobs, whole.logprobs) < 1e-13, "log-probs");
  TORCH_CHECK(max_abs_diff(own.entropy, whole.entropy) < 1e-13, "entropies");
  TORCH_CHECK(
      max_abs_diff(own.d_head, whole.d_head.narrow(0, part.words.begin, part.words.size())) < 1e-12,
      "gradient of the head");
  at::Tensor d_hidden = own.d_hidden.clone();
  part.ranks->all_reduce_sum(d_hidden, "test");
  TORCH_CHECK(max_abs_diff(d_hidden, whole.d_hidden) < 1e-12, "gradient of the hidden states");
}

TEST_CASE("a vocabulary in parts has the scores and gradients of the whole one") {
  for (const auto& [words, ranks] :
       std::vector<std::pair<int64_t, int64_t>>{{50, 2}, {101, 3}, {101, 4}, {8, 8}, {3, 4}}) {
    const Problem p = make_problem(15, words);
    const Solution whole = solve(p, 15);
    for (const int64_t chunk_rows : {1, 7, 15}) {
      CAPTURE(words, ranks, chunk_rows);
      test::run_vocabulary_parts(ranks, words, [&](const VocabularyPart& part) {
        check_part(p, whole, chunk_rows, part);
      });
    }
  }
}

// Gives entry i its target and the `size` words after word i.
void add_kept_sets(Problem& p, int64_t size) {
  const int64_t words = p.head.size(0);
  std::vector<int32_t> entries, ids;
  p.kept.begin = {0};
  for (int64_t i = 0; i < p.targets.size(0); ++i) {
    std::set<int64_t> set{p.targets[i].item<int64_t>()};
    for (int64_t k = 0; k < size; ++k) {
      set.insert((i + k) % words);
    }
    ids.insert(ids.end(), set.begin(), set.end());
    entries.insert(entries.end(), set.size(), static_cast<int32_t>(i));
    p.kept.begin.push_back(static_cast<int64_t>(ids.size()));
  }
  p.kept.entry_m = at::tensor(entries, at::kInt);
  p.kept.word_m = at::tensor(ids, at::kInt);
}

TEST_CASE("kept sets in parts of a vocabulary, some without a word of a set, are those of all") {
  for (const auto& [words, ranks] : std::vector<std::pair<int64_t, int64_t>>{{50, 2}, {101, 3}}) {
    Problem p = make_problem(15, words);
    const Solution over_all = solve(p, 15);
    add_kept_sets(p, 4);
    const Solution whole = solve(p, 15);
    CHECK(max_abs_diff(whole.logprobs, over_all.logprobs) > 0.1);
    for (const int64_t chunk_rows : {1, 7, 15}) {
      CAPTURE(words, ranks, chunk_rows);
      test::run_vocabulary_parts(ranks, words, [&](const VocabularyPart& part) {
        check_part(p, whole, chunk_rows, part);
      });
    }
  }
}

TEST_CASE("a second backward through parts of the vocabulary gives the same gradient") {
  const Problem p = make_problem(9, 20);
  test::run_vocabulary_parts(3, 20, [&](const VocabularyPart& part) {
    const at::Tensor hidden = p.hidden.clone().requires_grad_();
    const at::Tensor head = p.head.narrow(0, part.words.begin, part.words.size()).clone();
    const TokenScores scores = token_scores(hidden, head, p.targets, p.temperature, 4, part);
    const at::Tensor loss = (scores.logprobs_n * p.g_lp).sum();
    loss.backward({}, /*retain_graph=*/true);
    const at::Tensor first = hidden.grad().clone();
    hidden.mutable_grad().reset();
    loss.backward();
    TORCH_CHECK(at::equal(hidden.grad(), first), "the second backward differs");
  });
}

TEST_CASE(
    "one exchange of four numbers an entry; logits far apart and no entry are merged safely") {
  Problem p = make_problem(11, 12);
  p.hidden *= 300;  // all of the distribution in one part
  const Solution whole = solve(p, 4);
  const Problem none = make_problem(0, 12);
  test::run_vocabulary_parts(4, 12, [&](const VocabularyPart& part) {
    part.ranks->reset_counters();
    const Solution own = solve(p, 4, part);
    TORCH_CHECK(part.ranks->sent_bytes().at(kTensorTag) == 4 * 11 * 8 * 3, "bytes of the exchange");
    TORCH_CHECK(max_abs_diff(own.logprobs, whole.logprobs) < 1e-10, "log-probs");
    TORCH_CHECK(max_abs_diff(own.entropy, whole.entropy) < 1e-10, "entropies");
    TORCH_CHECK(own.d_hidden.isfinite().all().item<bool>(), "gradient");
    TORCH_CHECK(solve(none, 4, part).d_head.abs().sum().item<double>() == 0.0, "no entry");
  });
}

TEST_CASE("bf16: parts of the vocabulary have the fp32 scores of the whole one") {
  const Problem p = make_problem(40, 300, at::kBFloat16);
  const Solution whole = solve(p, 16);
  test::run_vocabulary_parts(3, 300, [&](const VocabularyPart& part) {
    const Solution own = solve(p, 16, part);
    TORCH_CHECK(own.logprobs.scalar_type() == at::kFloat, "dtype of the log-probs");
    TORCH_CHECK(max_abs_diff(own.logprobs, whole.logprobs) < 1e-5, "log-probs");
    TORCH_CHECK(max_abs_diff(own.entropy, whole.entropy) < 1e-5, "entropies");
  });
}

TEST_CASE("an embedding in parts has the bits of the whole table, forward and backward") {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const auto& [words, ranks] :
         std::vector<std::pair<int64_t, int64_t>>{{10, 2}, {11, 3}, {3, 4}}) {
      CAPTURE(words, ranks, dtype);
      const Problem p = make_problem(13, words);
      const at::ScalarType master = dtype == at::kDouble ? at::kDouble : at::kFloat;
      const at::Tensor leaf = p.head.to(master).clone().requires_grad_();
      const at::Tensor grad = p.hidden.to(dtype);
      const at::Tensor expected = embed({leaf.detach().to(dtype), leaf}, p.targets);
      expected.backward(grad);
      test::run_vocabulary_parts(ranks, words, [&](const VocabularyPart& part) {
        const auto own_words = [&](const at::Tensor& x) {
          return x.narrow(0, part.words.begin, part.words.size());
        };
        const at::Tensor own = own_words(leaf.detach()).clone().requires_grad_();
        const RowParts rows = even_rows(part.ranks, 13);
        const at::Tensor embedded =
            scatter_rows(embed_part({own.detach().to(dtype), own}, p.targets, part), rows);
        TORCH_CHECK(at::equal(embedded, own_rows(expected.detach(), rows)), "embeddings differ");
        embedded.backward(own_rows(grad, rows));
        TORCH_CHECK(at::equal(own.grad(), own_words(leaf.grad())), "gradients differ");
      });
    }
  }
}

TEST_CASE("ids outside the vocabulary and a head of another part are refused") {
  const Problem p = make_problem(4, 6);
  test::run_vocabulary_parts(2, 6, [&](const VocabularyPart& part) {
    const auto refused = [](const auto& call) {
      try {
        call();
      } catch (const c10::Error&) {
        return true;
      }
      return false;
    };
    part.ranks->reset_counters();
    const at::Tensor own = p.head.narrow(0, part.words.begin, part.words.size());
    for (const int64_t id : {-1, 6}) {
      const at::Tensor ids = at::full({4}, id, at::kLong);
      TORCH_CHECK(refused([&] { embed_part(own, ids, part); }), "embedded id ", id);
      TORCH_CHECK(refused([&] { token_scores(p.hidden, own, ids, p.temperature, 2, part); }),
                  "scored id ", id);
    }
    TORCH_CHECK(refused([&] { token_scores(p.hidden, p.head, p.targets, p.temperature, 2, part); }),
                "the whole head counts as a part");
    TORCH_CHECK(part.ranks->sent_bytes().empty(), "something was sent");
  });
}

}  // namespace
}  // namespace ringside::engine
