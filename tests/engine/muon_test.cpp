// Guards Muon's arithmetic against golden numbers of torch.optim.Muon (torch 2.11; those in fp64
// with its cast to bfloat16 taken out), and that a matrix among other parameters, or a stack of
// them, is updated as one alone.
#include "engine/optim/muon.h"

#include <ATen/ATen.h>

#include "engine/optim/adamw.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

// sin(1.7 i + phase), what the golden numbers were made from.
at::Tensor muon_wave(int64_t n, double phase) {
  return at::arange(n, at::kDouble).mul(1.7).add(phase).sin();
}

AdamWOptions options_of(bool nesterov, DirectionScale scale) {
  return {.beta2 = 0.95,
          .weight_decay = 0.1,
          .muon = MuonOptions{.nesterov = nesterov, .scale = scale}};
}

// Five steps of parameter `place` of the unit, which begins with muon_wave(0.1).
void train_matrix(ParamUnit& unit, AdamW& optimizer, std::size_t place) {
  const auto range = unit.layout().range(place);
  unit.flat().detach().narrow(0, range.offset, range.numel).copy_(muon_wave(range.numel, 0.1));
  for (int64_t t = 0; t < 5; ++t) {
    unit.grad().copy_(muon_wave(unit.layout().numel(), 9.0));
    unit.grad()
        .narrow(0, range.offset, range.numel)
        .copy_(muon_wave(range.numel, 1.0 + static_cast<double>(t)));
    optimizer.step(1e-2 / static_cast<double>(1 + t));
  }
}

at::Tensor golden_numbers(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble);
}

}  // namespace

TEST_CASE("Muon equals torch.optim.Muon over five steps, and AdamW has all else") {
  ParamUnit unit("unit", {{"b", {3}}, {"w", {2, 3}}, {"other", {2, 2}}}, at::kDouble);
  AdamW optimizer({&unit}, options_of(true, DirectionScale::kMatchAdamW), MuonMatrices{{{1}}});
  train_matrix(unit, optimizer, 1);
  CHECK(max_abs_diff(
            unit.view(1).view({-1}),
            golden_numbers({0.09639225236642263, 0.9732995167487258, -0.34720082043355893,
                            -0.8824109596643623, 0.5731666750348576, 0.7347122188805352})) < 1e-12);
  const auto state = optimizer.named_state();
  std::vector<std::string> names;
  for (const NamedSlice& slice : state) {
    names.push_back(slice.name);
  }
  CHECK(names == std::vector<std::string>{"exp_avg.b", "exp_avg.w", "exp_avg.other", "exp_avg_sq.b",
                                          "exp_avg_sq.other"});
  CHECK(max_abs_diff(state[1].values,
                     golden_numbers({-0.004276679014364225, -0.05634483812697365,
                                     0.018796123363630488, 0.05150128410796714,
                                     -0.03206743717655283, -0.043237858655234204})) < 1e-12);

  ParamUnit alone("alone", {{"b", {3}}, {"other", {2, 2}}}, at::kDouble);
  AdamW adamw({&alone}, {.beta2 = 0.95, .weight_decay = 0.1});
  const at::Tensor grads = muon_wave(13, 9.0);
  for (int64_t t = 0; t < 5; ++t) {
    alone.grad().copy_(at::cat({grads.narrow(0, 0, 3), grads.narrow(0, 9, 4)}));
    adamw.step(1e-2 / static_cast<double>(1 + t));
  }
  CHECK(at::equal(alone.view(0), unit.view(0)));
  CHECK(at::equal(alone.view(1), unit.view(2)));
}

TEST_CASE("Muon without Nesterov and with the spectral scale, of a tall matrix, equals torch's") {
  ParamUnit unit("unit", {{"w", {3, 2}}}, at::kDouble);
  AdamW optimizer({&unit}, options_of(false, DirectionScale::kSpectral), MuonMatrices{{{0}}});
  train_matrix(unit, optimizer, 0);
  CHECK(max_abs_diff(unit.view(0).view({-1}),
                     golden_numbers({0.08648623801747428, 0.9634051684814317, -0.34116689063219174,
                                     -0.884594836191777, 0.5731928284448405, 0.7470442091092367})) <
        1e-12);
}

TEST_CASE("Muon of bfloat16 computes its directions as torch does") {
  ParamUnit unit("unit", {{"w", {2, 3}}}, at::kBFloat16);
  AdamW optimizer({&unit}, options_of(true, DirectionScale::kMatchAdamW), MuonMatrices{{{0}}});
  train_matrix(unit, optimizer, 0);
  // A rounding of bfloat16 is 2^-9 of a direction of at most 1; the rates add up to 0.008.
  CHECK(max_abs_diff(unit.view(0).view({-1}).to(at::kDouble),
                     golden_numbers({0.09635647386312485, 0.9733275771141052, -0.34718331694602966,
                                     -0.8823931813240051, 0.5732409954071045,
                                     0.7346736788749695})) < 0.008 / 512);
}

TEST_CASE("experts in one tensor have a direction each, of inputs times outputs") {
  const AdamWOptions options = options_of(true, DirectionScale::kSpectral);
  ParamUnit stack("stack", {{"w", {2, 2, 3}}}, at::kDouble);
  AdamW of_stack({&stack}, options, MuonMatrices{{{0}}});
  ParamUnit each("each", {{"0.w", {3, 2}}, {"1.w", {3, 2}}}, at::kDouble);
  AdamW of_each({&each}, options, MuonMatrices{{{0, 1}}});
  const at::Tensor grad = muon_wave(12, 1.0).view({2, 2, 3});
  stack.grad().copy_(grad.reshape({-1}));
  each.grad().copy_(grad.mT().reshape({-1}));
  of_stack.step(1e-2);
  of_each.step(1e-2);
  CHECK(max_abs_diff(stack.view(0).mT().reshape({-1}), each.flat().detach()) < 1e-15);
}

TEST_CASE("a skipped step leaves Muon's matrices and momentum, and a zero gradient is no NaN") {
  ParamUnit unit("unit", {{"w", {2, 3}}}, at::kDouble);
  AdamW optimizer({&unit}, options_of(true, DirectionScale::kMatchAdamW), MuonMatrices{{{0}}});
  train_matrix(unit, optimizer, 0);
  const at::Tensor before = unit.flat().detach().clone();
  const at::Tensor momentum = optimizer.named_state()[0].values.clone();
  unit.grad().fill_(std::numeric_limits<double>::quiet_NaN());
  optimizer.step(1e-2, {{}, at::ones({}, at::kFloat)});
  CHECK(at::equal(unit.flat().detach(), before));
  CHECK(at::equal(optimizer.named_state()[0].values, momentum));
  CHECK(at::equal(orthogonalised(at::zeros({1, 2, 3}, at::kDouble), 5),
                  at::zeros({1, 2, 3}, at::kDouble)));
}

TEST_CASE("Muon refuses options that it cannot use") {
  ParamUnit unit("unit", {{"w", {2, 3}}}, at::kDouble);
  const auto make = [&](const MuonOptions& muon) {
    AdamW({&unit}, {.muon = muon}, MuonMatrices{{{0}}});
  };
  CHECK_THROWS_WITH(make({.momentum = 1.0}), Catch::Contains("momentum must be in [0, 1), got 1"));
  CHECK_THROWS_WITH(make({.newton_schulz_steps = 0}), Catch::Contains("expected 1 to 99"));
  CHECK_THROWS_WITH(AdamW({&unit}, {.muon = MuonOptions{}}), Catch::Contains("come together"));
}

}  // namespace ringside::engine
