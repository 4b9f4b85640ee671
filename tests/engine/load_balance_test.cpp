// Load-balancing loss against its formula in plain autograd, on one rank and on several.
#include "engine/nn/load_balance.h"

#include <ATen/ATen.h>

#include <vector>

#include "engine/models/decoder.h"
#include "engine/runner/model_runner.h"
#include "sp/layout/range.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

constexpr int64_t kLayers = 2, kTokens = 13, kExperts = 5, kPerToken = 2;
constexpr double kWeight = 0.7;

// Documents that have each token: the first four are shared.
at::Tensor copies() {
  at::Tensor all = at::ones({kTokens}, at::kLong);
  all.narrow(0, 0, 4).fill_(3);
  return all;
}

// Scores of each layer's router, leaves of autograd, and the experts that its tokens use.
struct Scores {
  std::vector<at::Tensor> scores_sX, expert_sK;

  explicit Scores(ScoreKind kind) {
    at::manual_seed(8);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const at::Tensor drawn = at::randn({kTokens, kExperts}, at::kDouble);
      scores_sX.push_back(
          (kind == ScoreKind::kLogits ? drawn : drawn.sigmoid()).set_requires_grad(true));
      expert_sK.push_back(std::get<1>(drawn.topk(kPerToken, 1)));
    }
  }
};

// All layers in one, as transformers writes it, over documents that share nothing.
at::Tensor formula(const Scores& in, ScoreKind kind) {
  std::vector<at::Tensor> scores, experts;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    scores.push_back(in.scores_sX[layer].repeat_interleave(copies(), 0));
    experts.push_back(in.expert_sK[layer].repeat_interleave(copies(), 0));
  }
  const at::Tensor all = at::cat(scores);
  const at::Tensor p = kind == ScoreKind::kLogits ? at::softmax(all, 1) : all / all.sum(1, true);
  const at::Tensor used = at::one_hot(at::cat(experts), kExperts).to(at::kDouble);
  return (used.mean(0) * p.mean(0).unsqueeze(0)).sum() * static_cast<double>(kExperts);
}

struct Found {
  double loss = 0.0;
  at::Tensor routes_LX;
  std::vector<at::Tensor> gradients;  // of the scores, of kWeight times the loss and of their sum
};

// Each rank watches its rows of every layer.
Found balance(const Scores& in, ScoreKind kind, int64_t ranks) {
  Found found;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    found.gradients.push_back(at::zeros({kTokens, kExperts}, at::kDouble));
  }
  test::run_ranks_in_memory(
      {.ulysses = ranks}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        const sp::Range rows = sp::even_part(kTokens, ranks, mesh.rank());
        const LoadBalance balance(kLayers, kExperts, copies().narrow(0, rows.begin, rows.size()));
        std::vector<at::Tensor> own;
        at::Tensor sum = at::zeros({}, at::kDouble);
        for (int64_t layer = 0; layer < kLayers; ++layer) {
          own.push_back(in.scores_sX[layer]
                            .detach()
                            .narrow(0, rows.begin, rows.size())
                            .clone()
                            .set_requires_grad(true));
          sum = sum + balance.watch(own.back(), layer, kind, nullptr).sum();
          balance.count(in.expert_sK[layer].narrow(0, rows.begin, rows.size()), layer, nullptr);
        }
        const at::Tensor loss = balance.finish(*groups.tensors(sp::axes::kLoss),
                                               at::scalar_tensor(kWeight, at::kDouble));
        sum.backward();
        for (int64_t layer = 0; layer < kLayers; ++layer) {  // the ranks have different rows
          found.gradients[layer].narrow(0, rows.begin, rows.size()).copy_(own[layer].grad());
        }
        if (mesh.rank() == 0) {
          found.loss = loss.item<double>();
          found.routes_LX = balance.routes_LX();
        }
      });
  return found;
}

TEST_CASE("load balance: value and gradient are those of the formula, on any number of ranks") {
  for (const ScoreKind kind : {ScoreKind::kLogits, ScoreKind::kSigmoids}) {
    const Scores in(kind);
    const at::Tensor expected = formula(in, kind);
    (kWeight * expected).backward();
    CHECK(expected.item<double>() > kPerToken);
    for (const int64_t ranks : {1, 2, 3, 14}) {  // of 14 ranks one has no token
      CAPTURE(kind, ranks);
      const Found found = balance(in, kind, ranks);
      CHECK(found.loss == Approx(expected.item<double>()).epsilon(1e-14));
      CHECK(found.routes_LX.sum().item<double>() == kLayers * kPerToken * (kTokens + 8));
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        const at::Tensor gradient = in.scores_sX[layer].grad();
        CHECK(gradient.abs().max().item<double>() > 1e-4);
        CHECK((found.gradients[layer] - 1.0 - gradient).abs().max().item<double>() < 1e-14);
      }
    }
  }
}

TEST_CASE("load balance: no token on any rank is a loss of 0") {
  const LoadBalance balance(1, kExperts, at::zeros({0}, at::kLong));
  const at::Tensor none =
      balance.watch(at::zeros({0, kExperts}, at::kDouble), 0, ScoreKind::kLogits, nullptr);
  balance.count(at::zeros({0, kPerToken}, at::kLong), 0, nullptr);
  const at::Tensor loss =
      balance.finish(*sp::make_single_rank_communicator(), at::ones({}, at::kDouble));
  CHECK(loss.item<double>() == 0.0);
}

TEST_CASE("load balance: a backward before finish() is an error") {
  const LoadBalance balance(1, kExperts, at::ones({2}, at::kLong));
  const at::Tensor scores = at::ones({2, kExperts}, at::kDouble).set_requires_grad(true);
  CHECK_THROWS_WITH(balance.watch(scores, 0, ScoreKind::kLogits, nullptr).sum().backward(),
                    Catch::Contains("finish() was not called"));
}

TEST_CASE("load balance: corrections move by the sign of the distance from the mean") {
  Decoder decoder = test::random_decoder(test::latent_config(), at::kFloat, 3);
  const auto correction = [&] { return decoder.units().back()->view(0).clone(); };
  CHECK(correction().abs().max().item<float>() == 0.0F);
  const at::Tensor routes_LX = at::tensor({4.0, 2.0, 3.0, 0.0, 9.0, 0.0}, at::kDouble).view({1, 6});
  decoder.move_router_corrections(routes_LX, 0.25);  // the mean is 3
  CHECK(correction().equal(at::tensor({-0.25F, 0.25F, 0.0F, 0.25F, -0.25F, 0.25F})));
  Decoder other = test::random_decoder(test::tiny_config(), at::kFloat, 3);
  CHECK_THROWS_WITH(other.move_router_corrections(routes_LX, 0.25),
                    Catch::Contains("no corrections"));
}

TEST_CASE("load balance: models that have nothing to balance are refused") {
  const auto groups = sp::single_rank_groups();
  const auto refused = [&](const ModelConfig& config, const BalanceOptions& options,
                           const std::string& why) {
    ModelRunner runner(
        std::make_unique<LanguageModel>(std::make_unique<Decoder>(config, at::kFloat)), groups,
        AdamWOptions{});
    CHECK_THROWS_WITH(runner.balance_experts(options), Catch::Contains(why));
  };
  refused(test::tiny_config(), {.aux_loss_coef = 0.1}, "a model without experts");
  refused(test::tiny_config(), {.bias_update_rate = 0.1}, "corrections that the model's routers");
  refused(test::stacked_config(), {.bias_update_rate = 0.1},
          "corrections that the model's routers");
}

}  // namespace
}  // namespace ringside::engine
