// Guards the divergences from a teacher: a wrong chunk edge, temperature or gradient would distil
// towards something else without any error.
#include "engine/ops/divergence.h"

#include "tests/support/catch.h"
#include "tests/support/close.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

constexpr int64_t kWords = 9;

struct Pair {
  LogitSource student, teacher;
  at::Tensor g_n;
};

LogitSource make_source(int64_t n, int64_t width, int64_t words) {
  return {at::randn({n, width}, at::kDouble), Weight(at::randn({words, width}, at::kDouble)),
          at::rand({n}, at::kDouble) + 0.5};
}

Pair make_pair(int64_t n, int64_t teacher_words = kWords) {
  at::manual_seed(3);
  Pair pair{make_source(n, 5, kWords), make_source(n, 7, teacher_words),
            at::randn({n}, at::kDouble)};
  pair.student.hidden_nE.requires_grad_(true);
  pair.student.head_VE.leaf.requires_grad_(true);
  return pair;
}

at::Tensor dense_logprobs(const LogitSource& source) {
  const at::Tensor logits = at::mm(source.hidden_nE, source.head_VE.leaf.narrow(0, 0, kWords).t());
  return at::log_softmax(logits / source.temperature_n.unsqueeze(1), 1);
}

// From the definitions, with probabilities.
at::Tensor dense_divergence(const at::Tensor& logp, const at::Tensor& logq, const Divergence& d) {
  const at::Tensor p = logp.exp(), q = logq.exp();
  const auto kl = [](const at::Tensor& a, const at::Tensor& b) {
    return (a * (a / b).log()).sum(1);
  };
  if (d.kind == DivergenceKind::kReverseKl) {
    return kl(p, q);
  }
  if (d.kind == DivergenceKind::kForwardKl) {
    return kl(q, p);
  }
  const at::Tensor m = d.mixture * q + (1 - d.mixture) * p;
  return d.mixture * kl(q, m) + (1 - d.mixture) * kl(p, m);
}

struct Gradients {
  at::Tensor hidden, head;
};

Gradients gradients(const Pair& pair, const at::Tensor& values_n) {
  pair.student.hidden_nE.mutable_grad().reset();
  pair.student.head_VE.leaf.mutable_grad().reset();
  (values_n * pair.g_n).sum().backward();
  return {pair.student.hidden_nE.grad().clone(), pair.student.head_VE.leaf.grad().clone()};
}

const Divergence kAll[] = {{DivergenceKind::kReverseKl, 0.5},
                           {DivergenceKind::kForwardKl, 0.5},
                           {DivergenceKind::kJensenShannon, 0.5},
                           {DivergenceKind::kJensenShannon, 0.1}};

TEST_CASE("divergences over the vocabulary equal dense autograd at every chunk boundary") {
  const int64_t n = 12;
  const Pair pair = make_pair(n);
  for (const Divergence& divergence : kAll) {
    const at::Tensor dense =
        dense_divergence(dense_logprobs(pair.student), dense_logprobs(pair.teacher), divergence);
    const Gradients expected = gradients(pair, dense);
    for (const int64_t chunk_rows : {1, 5, 6, 11, 12, 1000}) {
      CAPTURE(static_cast<int>(divergence.kind), divergence.mixture, chunk_rows);
      const at::Tensor found =
          vocabulary_divergence(pair.student, pair.teacher, divergence, chunk_rows);
      CHECK(max_abs_diff(found, dense) < 1e-13);
      const Gradients got = gradients(pair, found);
      CHECK(max_abs_diff(got.hidden, expected.hidden) < 1e-12);
      CHECK(max_abs_diff(got.head, expected.head) < 1e-12);
    }
  }
}

TEST_CASE("a teacher's further words, which pad its vocabulary, do not count") {
  const Pair pair = make_pair(4, kWords + 3);
  for (const Divergence& divergence : kAll) {
    const at::Tensor dense =
        dense_divergence(dense_logprobs(pair.student), dense_logprobs(pair.teacher), divergence);
    CHECK(max_abs_diff(vocabulary_divergence(pair.student, pair.teacher, divergence, 3), dense) <
          1e-13);
  }
  const TopTokens top = top_tokens(pair.teacher, kWords, kWords, 3);
  CHECK(max_abs_diff(top.logprobs_nK, dense_logprobs(pair.teacher).gather(1, top.ids_nK)) < 1e-13);
  CHECK_THROWS_WITH(vocabulary_divergence(pair.teacher, pair.student, kAll[0], 3),
                    Catch::Contains("expected a teacher with at least as many"));
}

TEST_CASE("over the most likely tokens all others are one class") {
  const Pair pair = make_pair(7);
  const at::Tensor logq = dense_logprobs(pair.teacher);
  for (const int64_t k : {int64_t{1}, int64_t{4}, kWords}) {
    const TopTokens top = top_tokens(pair.teacher, k, kWords, 3);
    const auto [expected_top, ids] = logq.topk(k, 1);
    CHECK(max_abs_diff(top.logprobs_nK, expected_top) < 1e-13);
    const auto classes = [&](const at::Tensor& logprobs) {
      const at::Tensor own = logprobs.gather(1, ids);
      const at::Tensor rest = 1 - own.exp().sum(1, /*keepdim=*/true);
      return at::cat({own, rest.clamp_min(1e-7).log()}, 1);
    };
    for (const Divergence& divergence : kAll) {
      CAPTURE(k, static_cast<int>(divergence.kind), divergence.mixture);
      const at::Tensor dense =
          dense_divergence(classes(dense_logprobs(pair.student)), classes(logq), divergence);
      const Gradients expected = gradients(pair, dense);
      const at::Tensor found =
          top_divergence(logprobs_of_ids(pair.student, top.ids_nK, 3), top.logprobs_nK, divergence);
      CHECK(max_abs_diff(found, dense) < 1e-12);
      const Gradients got = gradients(pair, found);
      CHECK(max_abs_diff(got.hidden, expected.hidden) < 1e-12);
      CHECK(max_abs_diff(got.head, expected.head) < 1e-12);
      const at::Tensor whole = vocabulary_divergence(pair.student, pair.teacher, divergence, 3);
      CHECK((found - whole).max().item<double>() < 1e-12);
      CHECK(found.min().item<double>() >= 0);
    }
  }
}

TEST_CASE("a distribution does not diverge from itself, and no row has no gradient but zeros") {
  const Pair pair = make_pair(0);
  for (const Divergence& divergence : kAll) {
    const at::Tensor none = vocabulary_divergence(pair.student, pair.teacher, divergence, 3);
    CHECK(none.numel() == 0);
    CHECK(gradients(pair, none).head.abs().sum().item<double>() == 0);
    const Pair same = make_pair(5);
    const at::Tensor found = vocabulary_divergence(same.student, same.student, divergence, 3);
    CHECK(max_abs_diff(found, at::zeros_like(found)) < 1e-14);
    CHECK(gradients(same, found).hidden.abs().max().item<double>() < 1e-14);
  }
}

TEST_CASE("bf16 divergences have logits that were not rounded to bf16") {
  Pair pair = make_pair(16);
  const auto rounded = [](const LogitSource& source) {
    return LogitSource{source.hidden_nE.detach().to(at::kBFloat16),
                       Weight(source.head_VE.value.detach().to(at::kBFloat16)),
                       source.temperature_n};
  };
  const LogitSource student = rounded(pair.student), teacher = rounded(pair.teacher);
  const auto widened = [](const LogitSource& source) {
    return LogitSource{source.hidden_nE.to(at::kDouble),
                       Weight(source.head_VE.value.to(at::kDouble)), source.temperature_n};
  };
  for (const Divergence& divergence : kAll) {
    const at::Tensor found = vocabulary_divergence(student, teacher, divergence, 5);
    CHECK(found.scalar_type() == at::kFloat);
    CHECK(max_abs_diff(found, dense_divergence(dense_logprobs(widened(student)),
                                               dense_logprobs(widened(teacher)), divergence)) <
          1e-4);  // the bound of token_scores; rounded logits would be off by 0.03
  }
}

TEST_CASE("operands of a divergence that do not fit are refused by name") {
  const Pair pair = make_pair(6);
  LogitSource shorter = pair.teacher;
  shorter.hidden_nE = shorter.hidden_nE.narrow(0, 0, 4);
  CHECK_THROWS_WITH(
      vocabulary_divergence(pair.student, shorter, kAll[0], 3),
      Catch::Contains("6 rows need temperatures") || Catch::Contains("4 rows need temperatures"));
  CHECK_THROWS_WITH(top_tokens(pair.teacher, kWords + 1, kWords, 3),
                    Catch::Contains("10 tokens of 9 words"));
  CHECK_THROWS_WITH(logprobs_of_ids(pair.student, at::zeros({6, 2}, at::kInt), 3),
                    Catch::Contains("int64 ids"));
}

}  // namespace
}  // namespace ringside::engine
