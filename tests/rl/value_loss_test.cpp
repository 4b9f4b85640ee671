// Guards: a value loss on the wrong side of its clip, statistics that lose their digits or count a
// token twice. Oracles: PyTorch fp64 (tests/goldens/value_loss.py), finite differences.
#include "rl/losses/value_loss.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/rl/fetched_figures.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/grad_check.h"

using namespace ringside;
using ringside::test::max_abs_diff;

namespace {

const nlohmann::json& goldens() {
  static const auto json =
      nlohmann::json::parse(std::ifstream(RINGSIDE_GOLDENS "/value_loss.json"));
  return json;
}

at::Tensor column(const std::string& name) {
  return at::tensor(goldens()[name].get<std::vector<double>>(), at::kDouble);
}

}  // namespace

TEST_CASE("the value loss equals its transcription in PyTorch, value, gradient and clipped share") {
  CHECK(goldens()["cases"].size() == 4);
  for (const auto& golden : goldens()["cases"]) {
    CAPTURE(golden["clip"].get<double>());
    const at::Tensor value = column("value").requires_grad_();
    const double tokens = static_cast<double>(value.numel());
    rl::Figures figures;
    const at::Tensor loss = rl::value_loss(value, column("old"), column("returns"), 1.0 / tokens,
                                           golden["clip"], figures);
    CHECK(std::abs(loss.item<double>() - golden["loss"].get<double>()) < 1e-12);
    const auto fetched = test::fetched(figures);
    CHECK(fetched["loss"] == loss.item<double>());
    CHECK(std::abs(fetched["clipped"] - golden["clipfrac"].get<double>()) < 1e-12);
    loss.backward();
    CHECK(max_abs_diff(value.grad(), at::tensor(golden["gradient"].get<std::vector<double>>(),
                                                at::kDouble)) < 1e-12);
  }
}

TEST_CASE("the value loss's gradient is that of finite differences") {
  for (const double clip : {0.0, 0.2, 0.5}) {
    const at::Tensor value = column("value").requires_grad_();
    const auto loss = [&] {
      rl::Figures figures;
      return rl::value_loss(value, column("old"), column("returns"), 0.05, clip, figures);
    };
    CHECK(test::worst_gradient_error(loss, {value}) < 1e-9);
  }
}

TEST_CASE(
    "the value loss of no tokens is a zero with a gradient path; columns that differ are refused") {
  const at::Tensor hidden = at::zeros({0}, at::kDouble).requires_grad_();
  const at::Tensor none = at::zeros({0}, at::kDouble);
  rl::Figures figures;
  const at::Tensor loss = rl::value_loss(hidden * 2.0, none, none, 0.0, 0.5, figures);
  CHECK(loss.item<double>() == 0.0);
  loss.backward();
  CHECK(hidden.grad().defined());
  CHECK_THROWS_WITH(rl::value_loss(hidden, none, at::zeros({2}, at::kDouble), 1.0, 0.5, figures),
                    Catch::Contains("returns"));
  CHECK_THROWS_WITH(rl::value_loss(hidden, none, none, 1.0, -0.5, figures),
                    Catch::Contains("value_clip"));
}

TEST_CASE("statistics of parts merge to those of the whole, also far from zero") {
  const auto& golden = goldens()["metrics"];
  for (const double offset : {0.0, 1e8}) {
    rl::ValueStatistics merged;
    const at::Tensor value = column("old") + offset, returned = column("returns") + offset;
    const std::vector<int64_t> parts{0, 7, 1, 0, 25, 7};
    const auto values = value.split_with_sizes(parts), returns = returned.split_with_sizes(parts);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      merged += rl::ValueStatistics::of(values[i], returns[i]);
    }
    const double margin = offset == 0.0 ? 1e-12 : 1e-7;  // numbers near 1e8 hold 1.5e-8 apart
    CHECK(merged.value.count == value.numel());
    CHECK(std::abs(merged.explained_variance() - golden["vf_explained_var"].get<double>()) <
          margin);
    CHECK(std::abs(merged.value.mean - offset - golden["values/mean"].get<double>()) < margin);
    CHECK(std::abs(merged.value_min - offset - golden["values/min"].get<double>()) < margin);
    CHECK(std::abs(merged.value_max - offset - golden["values/max"].get<double>()) < margin);
    CHECK(std::abs(merged.return_.mean - offset - golden["returns/mean"].get<double>()) < margin);
  }
  const at::Tensor same = at::ones({4}, at::kDouble);
  CHECK(rl::ValueStatistics::of(at::zeros({4}, at::kDouble), same).explained_variance() == 0.0);
}
