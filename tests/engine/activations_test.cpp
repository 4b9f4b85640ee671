// What saves activation memory changes no gradient, and selective recomputation sends nothing of
// the forward again.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "engine/nn/tiles.h"
#include "engine/runner/model_runner.h"
#include "sp/batch/collator.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

// Lengths that no rank count divides, and one document that one ring rank holds alone.
std::vector<sp::Document> documents() {
  std::vector<sp::Document> all;
  for (const int64_t length : {17, 3, 8, 1}) {
    sp::Document document;
    for (int64_t i = 0; i < length; ++i) {
      document.ids.push_back((5 * i + length) % 19);
    }
    for (int64_t i = 0; i < length; ++i) {
      document.entries.add(i, (3 * i + 1) % 19);
    }
    all.push_back(std::move(document));
  }
  return all;
}

struct Layout {
  const char* name;
  sp::MeshShape mesh;
  sp::RingImpl ring_impl = sp::RingImpl::kP2p;
  bool async_ulysses = false;
};

const std::vector<Layout> kLayouts{
    {"1", {1, 1, 1}},
    {"ulysses 2", {1, 1, 2}},
    {"ulysses 3, a key head for several ranks", {1, 1, 3}},
    {"asynchronous ulysses 2", {1, 1, 2}, sp::RingImpl::kP2p, true},
    {"ring 2", {1, 2, 1}},
    {"all-gather 2", {1, 2, 1}, sp::RingImpl::kAllGather},
    {"ring 2 x ulysses 2", {1, 2, 2}},
    {"ring 2 x asynchronous ulysses 2", {1, 2, 2}, sp::RingImpl::kP2p, true}};

// What rank 0 has after a pass over two micro-batches.
struct Pass {
  std::vector<at::Tensor> grads;
  std::map<std::string, int64_t> sent;  // by tag
  SequenceWork work;
};

Pass train(const Layout& layout, const ActivationOptions& activations,
           at::ScalarType dtype = at::kDouble, const ModelConfig& config = test::tiny_config()) {
  Pass pass;
  test::run_ranks_in_memory(layout.mesh, [&](const sp::Mesh& mesh,
                                             const sp::ProcessGroups& groups) {
    auto decoder = std::make_unique<Decoder>(config, dtype);
    decoder->init_random(7, 0.3);
    decoder->set_activation_options(activations);
    ModelRunner runner(std::make_unique<LanguageModel>(std::move(decoder)), groups, AdamWOptions{});
    sp::SequenceOptions options;
    options.plan.ring_impl = layout.ring_impl;
    options.async_ulysses = layout.async_ulysses;
    const auto batches =
        sp::collate(documents(), mesh, {{4, 2, 8}, 20, options, 0, distinct_windows(config)});
    REQUIRE(batches.size() == 2);
    std::vector<ModelInput> inputs;
    for (const sp::MicroBatch& batch : batches) {
      inputs.push_back({&batch, at::ones({batch.num_entries()})});
    }
    const SequenceWork work = runner.train(inputs, [](const HeadOutput& output, auto) {
      return (output.logprobs_n * 0.7 + output.entropy_n).sum();
    });
    if (mesh.rank() == 0) {
      for (const ParamUnit* unit : runner.model().units()) {
        pass.grads.push_back(unit->grad().clone());
      }
      for (const sp::Axes axes : {sp::axes::kUlysses, sp::axes::kRing}) {
        for (const auto& [tag, bytes] : groups.tensors(axes)->sent_bytes()) {
          pass.sent[tag] += static_cast<int64_t>(bytes);
        }
      }
      pass.work = work;
    }
  });
  return pass;
}

double largest_difference(const Pass& a, const Pass& b) {
  REQUIRE(a.grads.size() == b.grads.size());
  double difference = 0;
  for (std::size_t u = 0; u < a.grads.size(); ++u) {
    CHECK(a.grads[u].abs().sum().item<double>() > 0);
    difference = std::max(difference, max_abs_diff(a.grads[u], b.grads[u]));
  }
  return difference;
}

// The part of fp32 numbers whose last four bits are 0: few of those that were summed in fp32, and
// nearly all sums of a few bf16 numbers.
double rounded_part(const at::Tensor& numbers) {
  return numbers.view(at::kInt).bitwise_and(15).eq(0).to(at::kDouble).mean().item<double>();
}

TEST_CASE(
    "gradients of a bf16 layer's projections are not rounded to bf16 before ranks are summed") {
  const Layout& layout = GENERATE_COPY(from_range(kLayouts));
  CAPTURE(layout.name);
  const Pass pass = train(layout, {}, at::kBFloat16);
  Decoder decoder = test::random_decoder(test::tiny_config(), at::kBFloat16, 7);
  const std::vector<ParamUnit*> units = decoder.units();
  int64_t found = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    int64_t offset = 0;
    for (const ParamSpec& spec : units[u]->specs()) {
      if (spec.name.ends_with("_proj.weight")) {
        CAPTURE(spec.name);
        CHECK(rounded_part(pass.grads[u].narrow(0, offset, spec.numel())) < 0.5);
        ++found;
      }
      offset += spec.numel();
    }
  }
  CHECK(found == 2 * 7);
}

TEST_CASE(
    "recomputation of either kind gives the same bits, and the selective one sends nothing again") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.name);
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
      CAPTURE(dtype);
      const Pass none = train(layout, {}, dtype);
      const Pass full = train(layout, {Recompute::kFull}, dtype);
      const Pass selective = train(layout, {Recompute::kSelective}, dtype);
      CHECK(largest_difference(full, none) == 0);
      CHECK(largest_difference(selective, none) == 0);
      CHECK(selective.sent == none.sent);
      const bool sends = layout.mesh.world_size() > 1;
      CHECK((full.work.sent_bytes > none.work.sent_bytes) == sends);
      for (const Pass* pass : {&none, &full, &selective}) {
        // The asynchronous form sends what the synchronous one does, by other tags.
        CHECK(pass->work.predicted_bytes == pass->work.sent_bytes);
      }
    }
  }
}

TEST_CASE("a tiled MLP gives the same gradients, on every layout") {
  for (const Layout& layout : kLayouts) {
    const Pass whole = train(layout, {});
    for (const Recompute recompute : {Recompute::kFull, Recompute::kSelective}) {
      for (const int64_t rows : {1, 4, 1000}) {
        CAPTURE(layout.name, static_cast<int>(recompute), rows);
        CHECK(largest_difference(train(layout, {recompute, false, rows}), whole) < 1e-12);
      }
    }
  }
}

TEST_CASE("layers of other forms give the same gradients, recomputed and in tiles") {
  ModelConfig squared_relu = test::tiny_config(), norms_behind = test::tiny_config();
  ModelConfig norms_around = test::tiny_config();
  norms_around.norm_place = NormPlace::kBoth;
  squared_relu.mlp_bias = true;
  squared_relu.blocks.assign(2, {.channel_mixer = ChannelMixerKind::kSquaredReluMlp});
  norms_behind.norm_place = NormPlace::kAfter;
  norms_behind.blocks = {{.window = 6}, {.no_rope = true}};
  for (const ModelConfig& config : {squared_relu, norms_behind, norms_around}) {
    CAPTURE(static_cast<int>(config.norm_place));
    for (const std::size_t index : {0, 3, 6}) {
      const Layout& layout = kLayouts[index];
      const Pass whole = train(layout, {}, at::kDouble, config);
      for (const Recompute recompute : {Recompute::kFull, Recompute::kSelective}) {
        CAPTURE(layout.name, static_cast<int>(recompute));
        CHECK(largest_difference(train(layout, {recompute}, at::kDouble, config), whole) == 0);
        const Pass tiles = train(layout, {recompute, false, 4}, at::kDouble, config);
        CHECK(largest_difference(tiles, whole) < 1e-12);
      }
    }
  }
}

TEST_CASE("on the CPU offloaded activations stay where they are and give the same bits") {
  const Pass plain = train(kLayouts[6], {Recompute::kSelective});
  CHECK(largest_difference(train(kLayouts[6], {Recompute::kSelective, true}), plain) == 0);
}

TEST_CASE("offload and tiles without recomputation are refused") {
  Decoder decoder(test::tiny_config(), at::kFloat);
  using Catch::Contains;
  CHECK_THROWS_WITH(decoder.set_activation_options({Recompute::kNone, true}),
                    Contains("only when layers are recomputed"));
  CHECK_THROWS_WITH(decoder.set_activation_options({Recompute::kNone, false, 8}),
                    Contains("only when layers are recomputed"));
  CHECK_THROWS_WITH(decoder.set_activation_options({Recompute::kFull, false, -1}),
                    Contains("MLP tiles of -1"));
}

// A runner of one rank, its micro-batches and their inputs.
struct Training {
  explicit Training(const sp::Mesh& mesh, const sp::ProcessGroups& groups, at::ScalarType dtype)
      : batches(sp::collate(documents(), mesh, {{4, 2, 8}, 20, {}})) {
    auto decoder = std::make_unique<Decoder>(test::tiny_config(), dtype);
    decoder->init_random(7, 0.3);
    runner = std::make_unique<ModelRunner>(std::make_unique<LanguageModel>(std::move(decoder)),
                                           groups, AdamWOptions{});
    for (const sp::MicroBatch& batch : batches) {
      inputs.push_back({&batch, at::ones({batch.num_entries()})});
    }
  }
  StepResult step(double weight) {
    runner->train(
        inputs, [&](const HeadOutput& output, auto) { return output.logprobs_n.sum() * -weight; });
    return runner->step(1e-2, 1.0);
  }
  at::Tensor weights() const {
    std::vector<at::Tensor> flats;
    for (const ParamUnit* unit : runner->model().units()) {
      flats.push_back(unit->flat().detach());
    }
    return at::cat(flats);
  }
  std::vector<sp::MicroBatch> batches;
  std::unique_ptr<ModelRunner> runner;
  std::vector<ModelInput> inputs;
};

void on_one_rank(const std::function<void(const sp::Mesh&, const sp::ProcessGroups&)>& body) {
  test::run_ranks_in_memory({1, 1, 1}, body);
}

TEST_CASE("float16 under a loss scale takes the steps of fp32, where it alone would lose them") {
  on_one_rank([](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    // Small enough that gradients of activations would be zero in float16.
    const double weight = 1e-8;
    Training half(mesh, groups, at::kHalf), single(mesh, groups, at::kFloat);
    const at::Tensor start = single.weights().clone();
    for (int step = 0; step < 3; ++step) {
      const StepResult a = half.step(weight), b = single.step(weight);
      CHECK(a.loss_scale == 65536);
      CHECK(b.loss_scale == 0);
      CHECK_FALSE(a.skipped);
      CHECK(a.grad_norm == Approx(b.grad_norm).epsilon(0.02));
    }
    const double moved = (single.weights() - start).norm().item<double>();
    CHECK(moved > 0.1);
    CHECK((half.weights() - single.weights()).norm().item<double>() < 0.2 * moved);
  });
}

TEST_CASE(
    "float16: a step whose gradients overflow is skipped, the scale falls, training goes on") {
  on_one_rank([](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    Training training(mesh, groups, at::kHalf);
    const at::Tensor start = training.weights().clone();
    const StepResult first = training.step(3.0);
    CHECK(first.skipped);
    CHECK(first.grad_norm == 0);
    CHECK(max_abs_diff(training.weights(), start) == 0);
    CHECK(training.runner->step_count() == 0);
    int64_t skipped = 1;
    StepResult last = first;
    while (last.skipped) {
      last = training.step(3.0);
      skipped += last.skipped ? 1 : 0;
    }
    CHECK(last.loss_scale == 65536 / std::pow(2.0, skipped));
    CHECK(last.grad_norm > 0);
    CHECK(training.runner->step_count() == 1);
    CHECK(max_abs_diff(training.weights(), start) > 0);
  });
}

TEST_CASE("float16: gradients that are not finite at the smallest scale end training") {
  on_one_rank([](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    Training training(mesh, groups, at::kHalf);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (int step = 0; step < 16; ++step) {
      CHECK(training.step(nan).skipped);
    }
    CHECK_THROWS_WITH(training.step(nan), Catch::Contains("is nan at a loss scale of 1"));
  });
}

TEST_CASE("float16: the loss scale is part of the saved state") {
  on_one_rank([](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    Training training(mesh, groups, at::kHalf), resumed(mesh, groups, at::kHalf);
    training.step(std::numeric_limits<double>::infinity());
    const auto saved = training.runner->state_slices(), loaded = resumed.runner->state_slices();
    REQUIRE(saved.size() == loaded.size());
    for (std::size_t i = 0; i < saved.size(); ++i) {
      CHECK(saved[i].name == loaded[i].name);
      at::Tensor(loaded[i].values).copy_(saved[i].values);
    }
    CHECK(resumed.step(1e-3).loss_scale == 32768);
  });
}

// y = x w^2, a row at a time, with a leaf that needs no gradient beside it.
struct TileProblem {
  at::Tensor x, w, frozen = at::ones({3}, at::kDouble);
  explicit TileProblem(int64_t rows) {
    at::manual_seed(2);
    x = at::randn({rows, 3}, at::kDouble).set_requires_grad(true);
    w = at::randn({3, 3}, at::kDouble).set_requires_grad(true);
  }
  at::Tensor rows(const at::Tensor& x_t) const { return at::tanh(x_t.mm(w)).mm(w) * frozen; }
};

TEST_CASE("tiles: every row once, for ragged tiles, more tiles than rows, and no rows") {
  for (const int64_t rows : {0, 1, 9, 12}) {
    const TileProblem p(rows);
    const at::Tensor dy = at::randn({rows, 3}, at::kDouble);
    const auto expected = torch::autograd::grad({p.rows(p.x)}, {p.x, p.w}, {dy});
    for (const int64_t tile : {1, 2, 4, 9, 100}) {
      CAPTURE(rows, tile);
      int64_t largest = 0, calls = 0;
      const auto function = [&](const at::Tensor& x_t) {
        largest = std::max(largest, x_t.size(0));
        ++calls;
        return p.rows(x_t);
      };
      CHECK(max_abs_diff(apply_in_tiles(p.x, tile, function), p.rows(p.x).detach()) < 1e-14);
      CHECK(calls == std::max<int64_t>(1, (rows + tile - 1) / tile));
      CHECK(largest == std::min(tile, rows));
      const at::Tensor y =
          gradient_path_in_tiles(p.x, tile, {p.w, at::Tensor(), p.frozen}, function);
      const auto got = torch::autograd::grad({y}, {p.x, p.w}, {dy});
      CHECK(max_abs_diff(got[0], expected[0]) < 1e-13);
      CHECK(max_abs_diff(got[1], expected[1]) < 1e-13);
    }
  }
}

}  // namespace
}  // namespace ringside::engine
