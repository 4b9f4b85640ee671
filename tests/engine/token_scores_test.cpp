// Guards the chunked log-probs: a wrong chunk edge, a forgotten temperature or a wrong entropy
// gradient would train the wrong objective without any error.
#include "engine/ops/token_scores.h"

#include <sys/resource.h>

#include <iostream>

#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/kernel_count.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

struct ScoresProblem {
  at::Tensor hidden, head, targets, temperature, g_lp, g_entropy;
};

ScoresProblem make_problem(int64_t n, int64_t vocab) {
  at::manual_seed(7);
  return {at::randn({n, 5}, at::kDouble).set_requires_grad(true),
          at::randn({vocab, 5}, at::kDouble).set_requires_grad(true),
          at::randint(vocab, {n}, at::kLong),
          at::rand({n}, at::kDouble) + 0.5,
          at::randn({n}, at::kDouble),
          at::randn({n}, at::kDouble)};
}

TokenScores dense_scores(const ScoresProblem& p) {
  const at::Tensor logits = at::mm(p.hidden, p.head.t()) / p.temperature.unsqueeze(1);
  const at::Tensor logp = at::log_softmax(logits, 1);
  return {logp.gather(1, p.targets.unsqueeze(1)).squeeze(1), -(logp.exp() * logp).sum(1)};
}

struct Gradients {
  at::Tensor hidden, head;
};

Gradients backward(const ScoresProblem& p, const at::Tensor& loss) {
  p.hidden.mutable_grad().reset();
  p.head.mutable_grad().reset();
  loss.backward();
  return {p.hidden.grad().clone(), p.head.grad().clone()};
}

TEST_CASE("token_scores equal dense autograd at every chunk boundary") {
  const int64_t n = 12;
  const ScoresProblem p = make_problem(n, 9);
  const TokenScores dense = dense_scores(p);
  const Gradients expected =
      backward(p, (dense.logprobs_n * p.g_lp + dense.entropy_n * p.g_entropy).sum());
  for (const int64_t chunk_rows : {1, 5, 6, 11, 12, 13, 1000}) {
    CAPTURE(chunk_rows);
    const TokenScores scores = token_scores(p.hidden, p.head, p.targets, p.temperature, chunk_rows);
    CHECK(max_abs_diff(scores.logprobs_n, dense.logprobs_n) < 1e-13);
    CHECK(max_abs_diff(scores.entropy_n, dense.entropy_n) < 1e-13);
    const Gradients got =
        backward(p, (scores.logprobs_n * p.g_lp + scores.entropy_n * p.g_entropy).sum());
    CHECK(max_abs_diff(got.hidden, expected.hidden) < 1e-12);
    CHECK(max_abs_diff(got.head, expected.head) < 1e-12);
  }
}

// Sets of one to all words, each with its target.
KeptSets make_sets(const ScoresProblem& p) {
  const int64_t n = p.targets.size(0), vocab = p.head.size(0);
  std::vector<int32_t> entries, words;
  KeptSets kept{{0}, {}, {}};
  for (int64_t i = 0; i < n; ++i) {
    const int64_t target = p.targets[i].item<int64_t>();
    for (int64_t word = 0; word < vocab; ++word) {
      if (word == target || (word * 7 + i) % (n + 1) < i) {
        entries.push_back(static_cast<int32_t>(i));
        words.push_back(static_cast<int32_t>(word));
      }
    }
    kept.begin.push_back(static_cast<int64_t>(words.size()));
  }
  kept.entry_m = at::tensor(entries, at::kInt);
  kept.word_m = at::tensor(words, at::kInt);
  return kept;
}

// Log-softmax of each row's kept logits alone, by PyTorch's autograd.
TokenScores dense_kept_scores(const ScoresProblem& p, const KeptSets& kept) {
  const at::Tensor logits = at::mm(p.hidden, p.head.t()) / p.temperature.unsqueeze(1);
  std::vector<at::Tensor> logprobs, entropies;
  for (int64_t i = 0; i < p.targets.size(0); ++i) {
    const at::Tensor words =
        kept.word_m.narrow(0, kept.begin[i], kept.begin[i + 1] - kept.begin[i]).to(at::kLong);
    const at::Tensor logp = at::log_softmax(logits[i].index_select(0, words), 0);
    logprobs.push_back(logp.masked_select(words.eq(p.targets[i])).squeeze(0));
    entropies.push_back(-(logp.exp() * logp).sum());
  }
  return {at::stack(logprobs), at::stack(entropies)};
}

TEST_CASE("token_scores over kept sets are those of the renormalised distribution") {
  const ScoresProblem p = make_problem(12, 9);
  const KeptSets kept = make_sets(p);
  REQUIRE(kept.begin.back() > 12);
  REQUIRE(kept.begin.back() < 12 * 9);
  const TokenScores dense = dense_kept_scores(p, kept);
  const Gradients expected =
      backward(p, (dense.logprobs_n * p.g_lp + dense.entropy_n * p.g_entropy).sum());
  for (const int64_t chunk_rows : {1, 5, 12}) {
    CAPTURE(chunk_rows);
    const TokenScores scores =
        token_scores(p.hidden, p.head, p.targets, p.temperature, chunk_rows, {}, kept);
    CHECK(max_abs_diff(scores.logprobs_n, dense.logprobs_n) < 1e-13);
    CHECK(max_abs_diff(scores.entropy_n, dense.entropy_n) < 1e-13);
    const at::Tensor loss = (scores.logprobs_n * p.g_lp + scores.entropy_n * p.g_entropy).sum();
    p.hidden.mutable_grad().reset();
    p.head.mutable_grad().reset();
    loss.backward({}, /*retain_graph=*/true);
    const Gradients first{p.hidden.grad().clone(), p.head.grad().clone()};
    CHECK(max_abs_diff(first.hidden, expected.hidden) < 1e-12);
    CHECK(max_abs_diff(first.head, expected.head) < 1e-12);
    const Gradients second = backward(p, loss);
    CHECK(at::equal(second.hidden, first.hidden));
    CHECK(at::equal(second.head, first.head));
  }
  CHECK_THROWS_WITH(token_scores(p.hidden, p.head, p.targets, p.temperature, 5, {}, {{0}, {}, {}}),
                    Catch::Contains("12 rows need as many kept sets, got 0"));
}

TEST_CASE("the logits of one chunk are not computed again, except by a second backward") {
  const ScoresProblem p = make_problem(12, 9);
  const auto products = [](const auto& run) {
    const test::KernelCount count;
    run();
    int64_t sum = 0;
    for (const char* name : {"aten::mm", "aten::mm.out"}) {
      const auto found = count.kernels().find(name);
      sum += found == count.kernels().end() ? 0 : found->second;
    }
    return sum;
  };
  for (const int64_t chunks : {1, 3}) {
    CAPTURE(chunks);
    TokenScores scores;
    CHECK(products([&] {
            scores = token_scores(p.hidden, p.head, p.targets, p.temperature, 12 / chunks);
          }) == chunks);
    const at::Tensor loss = (scores.logprobs_n * p.g_lp + scores.entropy_n * p.g_entropy).sum();
    // One product a chunk for the hidden states' gradient, whose sum for the head counts as ours.
    CHECK(products([&] { loss.backward({}, /*retain_graph=*/true); }) == chunks + chunks - 1);
    const Gradients first{p.hidden.grad().clone(), p.head.grad().clone()};
    p.hidden.mutable_grad().reset();
    p.head.mutable_grad().reset();
    CHECK(products([&] { loss.backward(); }) == 2 * chunks);
    CHECK(at::equal(p.hidden.grad(), first.hidden));
    CHECK(at::equal(p.head.grad(), first.head));
    p.hidden.mutable_grad().reset();
    p.head.mutable_grad().reset();
  }
}

TEST_CASE("either output alone has its own gradient") {
  const ScoresProblem p = make_problem(6, 4);
  for (const bool entropy : {false, true}) {
    const auto loss = [&](const TokenScores& s) {
      return entropy ? (s.entropy_n * p.g_entropy).sum() : (s.logprobs_n * p.g_lp).sum();
    };
    const Gradients expected = backward(p, loss(dense_scores(p)));
    const Gradients got =
        backward(p, loss(token_scores(p.hidden, p.head, p.targets, p.temperature, 4)));
    CHECK(max_abs_diff(got.hidden, expected.hidden) < 1e-12);
    CHECK(max_abs_diff(got.head, expected.head) < 1e-12);
  }
}

TEST_CASE("no rows: empty scores, a head gradient of zero") {
  const ScoresProblem p = make_problem(0, 4);
  const TokenScores scores = token_scores(p.hidden, p.head, p.targets, p.temperature, 8);
  CHECK(scores.logprobs_n.numel() == 0);
  CHECK(scores.entropy_n.numel() == 0);
  const Gradients got = backward(p, scores.logprobs_n.sum() + scores.entropy_n.sum());
  CHECK(got.head.abs().sum().item<double>() == 0);
}

TEST_CASE("bf16 inputs give scores whose logits were not rounded to bf16") {
  ScoresProblem p = make_problem(64, 5000);
  const at::Tensor hidden = p.hidden.detach().to(at::kBFloat16).set_requires_grad(true);
  const at::Tensor head = p.head.detach().to(at::kBFloat16).set_requires_grad(true);
  const TokenScores scores = token_scores(hidden, head, p.targets, p.temperature, 10);
  CHECK(scores.logprobs_n.scalar_type() == at::kFloat);
  p.hidden = hidden.detach().to(at::kDouble);
  p.head = head.detach().to(at::kDouble);
  CHECK(max_abs_diff(scores.logprobs_n, dense_scores(p).logprobs_n) < 1e-4);
  scores.logprobs_n.sum().backward();
  CHECK(hidden.grad().scalar_type() == at::kBFloat16);
  CHECK(head.grad().isfinite().all().item<bool>());
}

TEST_CASE("rows of a chunk come from a budget of bytes that holds all that a chunk makes") {
  const auto rows = [](at::ScalarType dtype, int64_t vocab, int64_t mib) {
    return token_score_rows(at::dtype(dtype), vocab, mib << 20);
  };
  CHECK(rows(at::kFloat, 1 << 16, 48) == 64);     // logits, log-softmax, exponential: fp32 each
  CHECK(rows(at::kBFloat16, 1 << 16, 48) == 64);  // kept in fp32
  CHECK(rows(at::kHalf, 1 << 16, 48) == 64);
  CHECK(rows(at::kDouble, 1 << 16, 48) == 64);  // compared with fp32
  CHECK(rows(at::kFloat, 1 << 16, 96) == 128);
  CHECK(rows(at::kFloat, int64_t{1} << 40, 48) == 1);
  const auto on_cuda = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
  CHECK(token_score_rows(on_cuda, 1 << 16, 512 << 20) == 4096);  // bf16, in place
}

TEST_CASE("shapes that do not fit are refused") {
  const ScoresProblem p = make_problem(4, 3);
  CHECK_THROWS_AS(token_scores(p.hidden, p.head.narrow(1, 0, 4), p.targets, p.temperature, 1),
                  c10::Error);
  CHECK_THROWS_AS(token_scores(p.hidden, p.head, p.targets.narrow(0, 0, 3), p.temperature, 1),
                  c10::Error);
  CHECK_THROWS_AS(token_scores(p.hidden, p.head, p.targets, p.temperature, 0), c10::Error);
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(token_scores(p.hidden, p.head.to(at::kFloat), p.targets, p.temperature, 1),
                    Contains("token_scores: hidden is Double, head Float"));
  CHECK_THROWS_WITH(token_scores(p.hidden, p.head, p.targets.to(at::kMeta), p.temperature, 1),
                    Contains("hidden is on cpu, targets on meta"));
}

// Minutes. Run it by hand, alone: test_engine "[large]".
TEST_CASE("a head of 151,936 words over 32,768 tokens stays under 2 GiB", "[.large]") {
  const int64_t n = 32768, vocab = 151936, hidden_size = 256;
  at::manual_seed(1);
  const at::Tensor hidden = at::randn({n, hidden_size}).set_requires_grad(true);
  const at::Tensor head = at::randn({vocab, hidden_size}).set_requires_grad(true);
  const int64_t rows = token_score_rows(hidden.options(), vocab, int64_t{512} << 20);
  const TokenScores scores =
      token_scores(hidden, head, at::randint(vocab, {n}, at::kLong), at::ones({n}), rows);
  scores.logprobs_n.sum().backward();
  CHECK(head.grad().isfinite().all().item<bool>());
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::cout << "chunks of " << rows << " rows, peak of the process " << usage.ru_maxrss / 1024
            << " MiB\n";
  CHECK(usage.ru_maxrss < int64_t{2} << 20);  // KiB
}

}  // namespace
}  // namespace ringside::engine
