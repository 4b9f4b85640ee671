// Guards the optimizer's arithmetic against golden numbers of torch.optim.AdamW, transformers'
// schedules and clip_grad_norm_ (torch 2.11, transformers 5.9), and its state across a save and
// restore.
#include "engine/optim/adamw.h"
#include "engine/optim/divergence.h"
#include "engine/optim/grad_clip.h"
#include "engine/optim/loss_scale.h"
#include "engine/optim/lr_schedule.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

// sin(1.7 i + phase), what the golden numbers were made from.
at::Tensor wave(int64_t n, double phase) {
  return at::arange(n, at::kDouble).mul(1.7).add(phase).sin();
}

ParamUnit make_unit(at::ScalarType dtype = at::kDouble) {
  ParamUnit unit("unit", {{"w", {2, 3}}, {"b", {3}}}, dtype);
  unit.view(0).copy_(wave(6, 0.1).view({2, 3}));
  unit.view(1).copy_(wave(3, 0.5));
  return unit;
}

void set_gradient(ParamUnit& unit, int64_t t) {
  unit.grad().copy_(at::cat({wave(6, 1.0 + t), wave(3, 2.0 + t) * 3}));
}

constexpr AdamWOptions kOptions{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

at::Tensor golden(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }

TEST_CASE("AdamW equals torch.optim.AdamW over five steps, decay on matrices only") {
  ParamUnit unit = make_unit();
  AdamW optimizer({&unit}, kOptions);
  for (int64_t t = 0; t < 5; ++t) {
    set_gradient(unit, t);
    optimizer.step(1e-2 / (1 + t));
  }
  CHECK(optimizer.step_count() == 5);
  CHECK(max_abs_diff(unit.view(0).view({-1}),
                     golden({0.08125672671261332, 0.966886162593384, -0.33272393017236135,
                             -0.8792900084273577, 0.5612194474662441, 0.7519475714470254})) <
        1e-12);
  CHECK(max_abs_diff(unit.view(1),
                     golden({0.4668678421616507, 0.8280389191351962, -0.677648133352728})) < 1e-12);
  const auto state = optimizer.named_state();
  CHECK(state[0].name == "exp_avg.w");
  CHECK(max_abs_diff(state[0].values.view({-1}),
                     golden({-0.03107723766233983, -0.10065515136490731, 0.05701496181404184,
                             0.0859630235204896, -0.07916668640126541, -0.06556264017164272})) <
        1e-12);
  CHECK(state[3].name == "exp_avg_sq.b");
  CHECK(max_abs_diff(state[3].values,
                     golden({0.9715792138541097, 1.1212959404963734, 0.8646321981769131})) < 1e-12);
}

TEST_CASE("a backward through weights that a step has changed is refused") {
  ParamUnit unit = make_unit();
  AdamW optimizer({&unit}, kOptions);
  const at::Tensor loss = unit.flat().square().sum();
  set_gradient(unit, 0);
  optimizer.step(0.1);
  CHECK_THROWS_WITH(loss.backward(), Catch::Contains("modified by an inplace operation"));
}

TEST_CASE("AdamW restored through named_state continues bit for bit") {
  ParamUnit straight = make_unit(at::kFloat), resumed = make_unit(at::kFloat);
  AdamW a({&straight}, kOptions), first({&resumed}, kOptions), second({&resumed}, kOptions);
  for (int64_t t = 0; t < 4; ++t) {
    set_gradient(straight, t);
    set_gradient(resumed, t);
    a.step(1e-2);
    if (t == 2) {
      second.set_step_count(first.step_count());
      const auto from = first.named_state(), to = second.named_state();
      for (std::size_t i = 0; i < from.size(); ++i) {
        CHECK(from[i].name == to[i].name);
        at::Tensor(to[i].values).copy_(from[i].values);
      }
    }
    (t < 2 ? first : second).step(1e-2);
  }
  CHECK(second.step_count() == 4);
  CHECK(max_abs_diff(straight.flat().detach(), resumed.flat().detach()) == 0);
}

TEST_CASE("AdamW steps a unit without gradient by its decay alone, and refuses bad options") {
  ParamUnit unit = make_unit();
  const at::Tensor before = unit.flat().detach().clone();
  AdamW optimizer({&unit}, kOptions);
  optimizer.step(0.5);
  CHECK(max_abs_diff(unit.view(0), unit.layout().view_of(before, 0) * 0.95) < 1e-15);
  CHECK(max_abs_diff(unit.view(1), unit.layout().view_of(before, 1)) == 0);
  CHECK_THROWS_AS(AdamW({&unit}, {.beta1 = 1.0}), c10::Error);
  CHECK_THROWS_AS(AdamW({&unit}, {.weight_decay = -1.0}), c10::Error);
}

TEST_CASE("schedules equal transformers'") {
  const std::vector<int64_t> steps{0, 1, 2, 3, 5, 8, 10};
  const auto check = [&](LrSchedule schedule, const std::vector<double>& expected) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      CAPTURE(steps[i]);
      CHECK(schedule.at_step(steps[i]) == Approx(expected[i]).epsilon(1e-12));
    }
  };
  const LrSchedule base{.peak = 2e-3, .warmup_steps = 3, .total_steps = 11};
  LrSchedule linear = base, cosine = base, floored = base;
  linear.decay = LrDecay::kLinear;
  cosine.decay = floored.decay = LrDecay::kCosine;
  floored.min_lr_ratio = 0.1;
  const double w1 = 0.0006666666666666666, w2 = 0.0013333333333333333;
  check(base, {0, w1, w2, 0.002, 0.002, 0.002, 0.002});
  check(linear, {0, w1, w2, 0.002, 0.0015, 0.00075, 0.00025});
  check(cosine,
        {0, w1, w2, 0.002, 0.0017071067811865474, 0.0006173165676349102, 7.612046748871326e-05});
  check(floored,
        {0, w1, w2, 0.002, 0.0017363961030678928, 0.0007555849108714192, 0.00026850842073984193});
  CHECK(linear.at_step(11) == 0);
  CHECK(cosine.at_step(1000) == Approx(0).margin(1e-18));
  CHECK(floored.at_step(1000) == Approx(2e-4));
}

TEST_CASE("invalid schedules throw") {
  CHECK_THROWS_AS(LrSchedule{}.at_step(-1), std::invalid_argument);
  CHECK_THROWS_AS((LrSchedule{.decay = LrDecay::kLinear}.at_step(0)), std::invalid_argument);
  CHECK_THROWS_AS((LrSchedule{.min_lr_ratio = 1.5}.at_step(0)), std::invalid_argument);
}

TEST_CASE("the gradient norm and the clip equal torch's, in every master dtype") {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    CAPTURE(dtype);
    const double digits = dtype == at::kDouble ? 1e-14 : 1e-6;
    ParamUnit a("a", {{"w", {2, 3}}}, dtype), b("b", {{"b", {3}}}, dtype);
    a.grad().copy_(wave(6, 1.0));
    b.grad().copy_(wave(3, 2.0) * 3);
    const std::vector<ParamUnit*> units{&a, &b};
    const at::Tensor norm = global_grad_norm(units);
    CHECK(norm.item<double>() == Approx(4.263169134299605).epsilon(digits));
    AdamW(units, kOptions).step(1e-2, {clip_scale(norm, 0.5), {}});
    CHECK(max_abs_diff(a.grad(), golden({0.09869075808607643, 0.05012465685984685,
                                         -0.11160733021576379, -0.021364676817199474,
                                         0.11711277217636254, -0.008813994996021413})) < digits);
    const at::Tensor clipped = global_grad_norm(units);
    CHECK(clipped.item<double>() == Approx(0.5).epsilon(1e-5));
    CHECK(clip_scale(clipped, 0.6).item<double>() == 1.0);
    CHECK(clip_scale(clipped, 0.0).item<double>() == 1.0);
    CHECK_THROWS_AS(clip_scale(clipped, -1.0), c10::Error);
  }
  CHECK_THROWS_AS(global_grad_norm({}), c10::Error);
}

TEST_CASE("a skipped step leaves weights and moments as they were") {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    ParamUnit unit = make_unit(dtype);
    const at::Tensor before = unit.flat().detach().clone();
    unit.grad().fill_(std::numeric_limits<double>::infinity());
    const std::vector<ParamUnit*> units{&unit};
    const at::Tensor norm = global_grad_norm(units);
    CHECK_FALSE(std::isfinite(norm.item<double>()));
    AdamW optimizer(units, kOptions);
    optimizer.step(1e-2, {clip_scale(norm, 1.0), at::ones({}, at::kFloat)});
    CHECK(max_abs_diff(unit.flat().detach(), before) == 0);
    CHECK(optimizer.named_state()[0].values.abs().max().item<double>() == 0);
    optimizer.step(1e-2, {{}, at::zeros({}, at::kFloat)});
    CHECK_FALSE(unit.flat().isfinite().all().item<bool>());
  }
}

// x = a step whose gradients are not finite. The scales are torch.amp.GradScaler's.
TEST_CASE("the loss scale has torch.amp.GradScaler's history, across a save and restore") {
  const std::vector<double> expected{1024.0, 1024.0, 1024.0, 512.0, 512.0, 512.0, 1024.0,
                                     1024.0, 512.0,  256.0,  256.0, 256.0, 512.0};
  const LossScaleOptions options{.initial = 1024.0, .growth_interval = 3};
  LossScale first(at::kCPU, options), second(at::kCPU, options);
  std::vector<double> scales;
  const std::string steps = "..x....xx...";
  for (std::size_t t = 0; t < steps.size(); ++t) {
    if (t == 5) {  // two finite steps into an interval
      for (std::size_t i = 0; i < 2; ++i) {
        CHECK(first.named_state()[i].first == second.named_state()[i].first);
        second.named_state()[i].second.copy_(first.named_state()[i].second);
      }
    }
    LossScale& scale = t < 5 ? first : second;
    scales.push_back(scale.value().item<double>());
    scale.update(at::full({}, steps[t] == 'x' ? 1.0 : 0.0, at::kFloat));
  }
  scales.push_back(second.value().item<double>());
  CHECK(scales == expected);
  CHECK_THROWS_AS(LossScale(at::kCPU, {.backoff = 1.0}), c10::Error);
}

TEST_CASE("finite marks tell the units with a weight that is not finite") {
  ParamUnit good = make_unit(at::kFloat), bad = make_unit(at::kFloat);
  const std::vector<ParamUnit*> units{&good, &bad};
  CHECK(max_abs_diff(finite_marks(units), at::zeros({2}, at::kDouble)) == 0);
  CHECK(first_non_finite(units).empty());
  bad.view(1)[2] = -std::numeric_limits<double>::infinity();
  CHECK(finite_marks(units).isnan()[0].item<bool>() == false);
  CHECK(finite_marks(units).isnan()[1].item<bool>());
  CHECK(first_non_finite(units) == "b");
}

}  // namespace
}  // namespace ringside::engine
