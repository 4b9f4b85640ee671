// Guards: generation with recurrent states that departs from a forward over the whole sequence;
// packed documents that reach each other; gradients of a model with gated delta nets.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <span>

#include "engine/generate/generator.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/local_hybrid.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;
using Prompts = std::vector<std::vector<int64_t>>;

// Slow decays, so that a state of the wrong sequence or step is seen.
Decoder hybrid_decoder(bool experts, at::ScalarType dtype = at::kDouble) {
  Decoder decoder = test::random_decoder(test::hybrid_config(experts, 13), dtype, 9, 0.35);
  const at::NoGradGuard no_grad;
  for (ParamUnit* unit : decoder.units()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      if (unit->specs()[i].name.ends_with("A_log")) {
        unit->view(i).fill_(-3);
      }
    }
    unit->changed();
  }
  return decoder;
}

at::Tensor hidden_of(const Decoder& decoder, const std::vector<int64_t>& ids,
                     const std::vector<int64_t>& lengths) {
  test::LocalHybrid backend(decoder.config(), lengths);
  return decoder.forward(at::tensor(ids, at::kLong), test::packed_positions(lengths), backend);
}

TEST_CASE("greedy decoding with recurrent states equals a forward over the whole sequence") {
  const Prompts prompts{{1, 2, 3}, {4}, {5, 6, 7, 8, 9, 1, 2}, {1, 2, 3}, {10, 11}};
  for (const bool experts : {false, true}) {
    const Decoder decoder = hybrid_decoder(experts);
    const auto completions =
        generate(decoder, prompts, {.temperature = 0, .max_new_tokens = 80, .stop_ids = {0}});
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      std::vector<int64_t> all = prompts[i];
      all.insert(all.end(), completions[i].ids.begin(), completions[i].ids.end());
      const at::Tensor logits =
          test::logits_of(decoder, hidden_of(decoder, all, {static_cast<int64_t>(all.size())}));
      const at::Tensor logprobs = at::log_softmax(logits, -1);
      for (std::size_t t = prompts[i].size(); t < all.size(); ++t) {
        CAPTURE(experts, i, t);
        const at::Tensor row = logprobs[static_cast<int64_t>(t) - 1];
        CHECK(row.argmax().item<int64_t>() == all[t]);
        CHECK(completions[i].logprobs[t - prompts[i].size()] ==
              Approx(row[all[t]].item<double>()).margin(1e-5));
      }
    }
  }
}

TEST_CASE("a completion of a hybrid model does not depend on who shares or leaves the batch") {
  const Prompts prompts{{1, 2, 3}, {4}, {5, 6, 7, 8, 9, 1, 2}, {1, 2, 3}, {10, 11}, {4}};
  const std::vector<uint64_t> seeds{1, 2, 3, 4, 5, 6};
  const SamplingParams params{.max_new_tokens = 70, .stop_ids = {0, 3}};
  const Decoder decoder = hybrid_decoder(/*experts=*/true);
  const auto together = generate(decoder, prompts, params, {.seeds = seeds});
  std::size_t shortest = 70, longest = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto alone =
        generate(decoder, {prompts[i]}, params, {.seeds = std::span(seeds).subspan(i, 1)});
    CAPTURE(i);
    CHECK(alone[0].ids == together[i].ids);
    CHECK(alone[0].finish == together[i].finish);
    CHECK(max_abs_diff(at::tensor(alone[0].logprobs), at::tensor(together[i].logprobs)) < 1e-6);
    shortest = std::min(shortest, together[i].ids.size());
    longest = std::max(longest, together[i].ids.size());
  }
  CHECK(shortest + 10 < longest);  // rows left the batch while others went on
}

TEST_CASE("a completion that goes on under new weights has states of the new weights alone") {
  const Prompts prompts{{1, 2, 3}, {5, 6, 7, 8, 9, 1, 2}};
  const SamplingParams params{.temperature = 0, .max_new_tokens = 40};
  Decoder decoder = hybrid_decoder(/*experts=*/false);
  int asked = 0;
  const auto begun =
      generate(decoder, prompts, params, {.should_stop = [&] { return asked++ == 9; }});
  {
    const at::NoGradGuard no_grad;
    for (ParamUnit* unit : decoder.units()) {
      unit->flat().mul_(1.1);
      unit->changed();
    }
  }
  Prompts so_far = prompts;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    REQUIRE(begun[i].ids.size() == 9);
    so_far[i].insert(so_far[i].end(), begun[i].ids.begin(), begun[i].ids.end());
  }
  const auto rest = generate(decoder, so_far, params);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int64_t> all = so_far[i];
    all.insert(all.end(), rest[i].ids.begin(), rest[i].ids.end());
    const at::Tensor next =
        test::logits_of(decoder, hidden_of(decoder, all, {static_cast<int64_t>(all.size())}))
            .argmax(-1);
    for (std::size_t t = so_far[i].size(); t < all.size(); ++t) {
      CHECK(next[static_cast<int64_t>(t) - 1].item<int64_t>() == all[t]);
    }
  }
}

TEST_CASE("packed documents of a hybrid model compute as each does alone") {
  const Decoder decoder = hybrid_decoder(/*experts=*/true);
  const std::vector<int64_t> ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, lengths{6, 1, 3};
  const at::NoGradGuard no_grad;
  const at::Tensor together = hidden_of(decoder, ids, lengths);
  int64_t begin = 0;
  for (const int64_t n : lengths) {
    const std::vector<int64_t> own(ids.begin() + begin, ids.begin() + begin + n);
    CHECK(max_abs_diff(together.narrow(0, begin, n), hidden_of(decoder, own, {n})) < 1e-12);
    begin += n;
  }
}

TEST_CASE("every gradient of a hybrid model equals finite differences") {
  const std::vector<int64_t> ids{1, 2, 3, 4, 5, 6, 7, 8}, lengths{5, 1, 2};
  for (const bool experts : {false, true}) {
    Decoder decoder = hybrid_decoder(experts);
    at::manual_seed(1);
    const at::Tensor weight = at::randn({8, decoder.config().hidden_size}, at::kDouble);
    const auto loss = [&] { return (hidden_of(decoder, ids, lengths) * weight).sum(); };
    for (ParamUnit* unit : decoder.units()) {
      unit->zero_grad();
    }
    loss().backward();
    const at::NoGradGuard no_grad;
    for (ParamUnit* unit : decoder.units()) {
      if (!unit->flat().grad().defined()) {
        continue;  // the head's, which takes no part
      }
      const at::Tensor direction = at::randn_like(unit->flat());
      const double step = 1e-6;
      const auto moved = [&](double by) {
        unit->flat().add_(direction, by);
        unit->changed();
        return loss().item<double>();
      };
      const double up = moved(step), down = moved(-2 * step);
      moved(step);
      CAPTURE(experts, unit->name());
      const double expected = (up - down) / (2 * step);
      CHECK((unit->flat().grad() * direction).sum().item<double>() ==
            Approx(expected).epsilon(1e-6).margin(1e-6));
    }
  }
}

TEST_CASE("a backend without states is refused by the layer's number") {
  const Decoder decoder = hybrid_decoder(false);
  test::LocalAttention attention({2});
  CHECK_THROWS_WITH(
      decoder.forward(at::tensor({1, 2}, at::kLong), at::tensor({0, 1}, at::kLong), attention),
      Catch::Contains("layer 0 needs a backend that passes states"));
}

}  // namespace
}  // namespace ringside::engine
