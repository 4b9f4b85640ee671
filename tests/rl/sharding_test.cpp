// Guards: a sharded model that trains differently from a whole one; a shard cut where it should not
// be; memory and messages that the plan does not know of.
#include <ATen/ATen.h>

#include <array>

#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/sharded_training.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

using Layout = test::ShardLayout;
using Outcome = test::ShardOutcome;

constexpr int64_t kSteps = 5;

// Of rank 0.
Outcome train(const Layout& layout, const engine::ModelConfig& model, at::ScalarType dtype,
              at::ScalarType wire) {
  Outcome outcome;
  const rl::ParallelConfig parallel = layout.config();
  test::run_ranks_in_memory(
      rl::mesh_shape(parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        Outcome own = test::train_sharded(layout, model, dtype, wire, kSteps, mesh, groups);
        if (mesh.rank() == 0) {
          outcome = std::move(own);
        }
      },
      rl::sharding_axes(parallel));
  return outcome;
}

engine::ModelConfig tied() {
  engine::ModelConfig config = test::tiny_config();
  config.tie_word_embeddings = true;
  return config;
}

engine::ModelConfig untied() {
  engine::ModelConfig config = test::tiny_config();
  config.tie_word_embeddings = false;
  return config;
}

// The second layer has experts, more than a rank has tokens for at times.
engine::ModelConfig with_experts() {
  engine::ModelConfig config = untied();
  config.experts = {.count = 5, .per_token = 2, .intermediate_size = 12, .normalise_weights = true};
  config.blocks = {{}, {.channel_mixer = engine::ChannelMixerKind::kExperts}};
  return config;
}

void require_equal(const Outcome& found, const Outcome& expected, double tolerance) {
  REQUIRE(found.weights.size() == expected.weights.size());
  for (std::size_t u = 0; u < expected.weights.size(); ++u) {
    const auto difference = (found.weights[u] - expected.weights[u]).abs().max().item<double>();
    CAPTURE(u, difference);
    REQUIRE(difference < tolerance);
  }
  for (int64_t step = 0; step < kSteps; ++step) {
    CAPTURE(step);
    REQUIRE(found.losses[step] == Approx(expected.losses[step]).epsilon(tolerance).margin(1e-12));
    REQUIRE(found.norms[step] == Approx(expected.norms[step]).epsilon(tolerance));
  }
}

// Meshes of the grid: {replicate, shard, ring, ulysses}.
const std::vector<std::array<int64_t, 4>> kMeshes{
    {1, 2, 1, 1}, {1, 3, 1, 1}, {1, 4, 1, 1}, {1, 1, 2, 1}, {1, 1, 1, 2}, {1, 1, 2, 2},
    {1, 2, 2, 1}, {1, 2, 1, 2}, {2, 2, 1, 1}, {1, 2, 2, 2}, {2, 1, 2, 2}};
constexpr std::array kModes{rl::CpFsdpMode::kAll, rl::CpFsdpMode::kUlyssesOnly,
                            rl::CpFsdpMode::kRingOnly, rl::CpFsdpMode::kNone};

const std::vector<engine::ActivationOptions> kActivations{
    {},
    {engine::Recompute::kFull},
    {engine::Recompute::kSelective, /*offload=*/true, /*mlp_tile_tokens=*/5}};

std::vector<Layout> grid() {
  using Offload = rl::OptimizerOffload;
  std::vector<Layout> all{
      {.offload = Offload::kMoments},
      {.offload = Offload::kFull},
      {.offload = Offload::kFull, .offload_parameters = true},
      {.replicate = 2, .offload = Offload::kFull},
      {.ulysses = 2, .mode = rl::CpFsdpMode::kNone, .stage = 1, .offload = Offload::kFull}};
  for (const auto& [replicate, shard, ring, ulysses] : kMeshes) {
    for (const rl::CpFsdpMode mode : kModes) {
      if (ring * ulysses == 1 && mode != rl::CpFsdpMode::kAll) {
        continue;
      }
      for (const int64_t stage : {1, 2, 3}) {
        for (const engine::ActivationOptions& activations : kActivations) {
          const auto offload = static_cast<rl::OptimizerOffload>(all.size() % 3);
          const bool parameters = offload == rl::OptimizerOffload::kFull && all.size() % 2 == 0;
          all.push_back(
              {replicate, shard, ring, ulysses, mode, stage, activations, offload, parameters});
        }
      }
    }
  }
  return all;
}

// Every `stride`-th layout of the grid, each in a section with its name.
void check_grid(std::size_t stride) {
  static const Outcome whole_tied = train({}, tied(), at::kDouble, at::kDouble);
  static const Outcome whole_untied = train({}, untied(), at::kDouble, at::kDouble);
  CHECK(whole_tied.norms[0] > 0.01);
  const std::vector<Layout> all = grid();
  for (std::size_t i = 0; i < all.size(); i += stride) {
    const bool is_tied = i % 2 == 0;
    DYNAMIC_SECTION(all[i].name() << (is_tied ? " tied" : " untied")) {
      require_equal(train(all[i], is_tied ? tied() : untied(), at::kDouble, at::kDouble),
                    is_tied ? whole_tied : whole_untied, 1e-10);
    }
  }
}

}  // namespace

TEST_CASE("a sharded model trains as a whole one: every seventh layout") { check_grid(7); }

TEST_CASE("a sharded model trains as a whole one: all layouts", "[.][grid]") { check_grid(1); }

TEST_CASE("a model with experts trains as in one process on every mesh") {
  const Outcome whole = train({}, with_experts(), at::kDouble, at::kDouble);
  CHECK(whole.norms[0] > 0.01);
  std::vector<Layout> layouts{{.replicate = 2}, {.offload = rl::OptimizerOffload::kFull}};
  for (const auto& [replicate, shard, ring, ulysses] : kMeshes) {
    const auto recompute = static_cast<engine::Recompute>(layouts.size() % 3);
    layouts.push_back({replicate,
                       shard,
                       ring,
                       ulysses,
                       kModes[layouts.size() % kModes.size()],
                       static_cast<int64_t>(1 + layouts.size() % 3),
                       {recompute}});
  }
  for (const Layout& layout : layouts) {
    CAPTURE(layout.name());
    require_equal(train(layout, with_experts(), at::kDouble, at::kDouble), whole, 1e-10);
  }
}

TEST_CASE("experts of several ranks train as in one process") {
  using Mode = rl::CpFsdpMode;
  using engine::Recompute;
  const sp::RingImpl gathered = sp::RingImpl::kAllGather;
  const std::vector<Layout> layouts{
      {.ulysses = 2, .expert = 2},
      {.ulysses = 2, .activations = {Recompute::kFull}, .expert = 2, .shared_prefix = false},
      {.ring = 2, .stage = 1, .activations = {Recompute::kSelective}, .expert = 2},
      {.ring = 2, .mode = Mode::kNone, .expert = 2, .ring_impl = gathered},
      {.ring = 2, .ulysses = 2, .expert = 4},
      {.ring = 2, .ulysses = 2, .mode = Mode::kNone, .expert = 2, .shared_prefix = false},
      {.shard = 2, .ulysses = 2, .expert = 2},
      {.shard = 2, .ulysses = 2, .stage = 2, .activations = {Recompute::kFull}, .expert = 2},
      {.shard = 2, .ring = 2, .mode = Mode::kNone, .expert = 4, .shared_prefix = false},
      {.shard = 4, .documents = 3, .expert = 4},
      {.replicate = 2, .ulysses = 2, .activations = {Recompute::kSelective, true}, .expert = 2},
      {.replicate = 2, .shard = 2, .offload = rl::OptimizerOffload::kFull, .expert = 2}};
  for (const int64_t documents : {9, 3}) {
    const Outcome whole = train({.documents = documents}, with_experts(), at::kDouble, at::kDouble);
    for (const Layout& layout : layouts) {
      if (layout.documents == documents) {
        CAPTURE(layout.name());
        const Outcome found = train(layout, with_experts(), at::kDouble, at::kDouble);
        CHECK((documents == 9 || found.empty_micro_batches > 0));
        require_equal(found, whole, 1e-10);
      }
    }
  }
}

TEST_CASE("stacked experts of several ranks train as in one process") {
  using Mode = rl::CpFsdpMode;
  using engine::Recompute;
  const engine::ModelConfig model = test::stacked_config();
  const Outcome whole = train({}, model, at::kDouble, at::kDouble);
  CHECK(whole.norms[0] > 0.01);
  const std::vector<Layout> layouts{
      {.shard = 2},
      {.ulysses = 2, .expert = 2},
      {.ring = 2, .mode = Mode::kNone, .expert = 2},
      {.ring = 2, .ulysses = 2, .activations = {Recompute::kFull}, .expert = 4},
      {.ring = 2, .ulysses = 2, .activations = {Recompute::kSelective, true}, .expert = 2},
      {.shard = 2, .ulysses = 2, .stage = 2, .expert = 2, .shared_prefix = false},
      {.replicate = 2, .shard = 2, .offload = rl::OptimizerOffload::kFull, .expert = 2}};
  for (const Layout& layout : layouts) {
    CAPTURE(layout.name());
    require_equal(train(layout, model, at::kDouble, at::kDouble), whole, 1e-10);
  }
}

TEST_CASE("a model with latent attention trains as in one process on every mesh") {
  const engine::ModelConfig model = test::latent_config();
  const Outcome whole = train({}, model, at::kDouble, at::kDouble);
  CHECK(whole.norms[0] > 0.01);
  // The correction of the router: drawn, and left as it was by five steps with weight decay.
  const at::Tensor correction = whole.weights.back();
  CHECK(correction.numel() == model.experts.count);
  CHECK(correction.equal(test::router_correction(model.experts.count)));
  const std::vector<Layout> layouts{
      {.ulysses = 2},
      {.ulysses = 2, .activations = {engine::Recompute::kFull}, .expert = 2},
      {.ring = 2},
      {.ring = 2, .ulysses = 2, .activations = {engine::Recompute::kSelective}},
      {.ring = 2, .ring_impl = sp::RingImpl::kAllGather},
      {.ring = 2, .ulysses = 2, .activations = {engine::Recompute::kFull}, .expert = 4},
      {.shard = 2, .ulysses = 2, .expert = 2},
      {.replicate = 2},
      {.shard = 2, .ulysses = 2, .activations = {engine::Recompute::kFull}},
      {.shard = 2, .stage = 1},
      {.shard = 2, .offload = rl::OptimizerOffload::kFull}};
  for (const Layout& layout : layouts) {
    CAPTURE(layout.name());
    require_equal(train(layout, model, at::kDouble, at::kDouble), whole, 1e-10);
  }
}

// One micro-batch a step at every layout, so that the loss is over the same tokens. Documents share
// a prefix within a data-parallel rank.
TEST_CASE("experts are balanced alike on every mesh") {
  using engine::Recompute;
  const std::vector<Layout> layouts{
      {.ulysses = 2, .expert = 2},
      {.ring = 2, .ulysses = 2, .activations = {Recompute::kFull}, .expert = 4},
      {.shard = 2, .ulysses = 2, .activations = {Recompute::kSelective, true}, .expert = 2},
      {.replicate = 2}};
  for (const auto& model : {with_experts(), test::stacked_config(), test::latent_config()}) {
    const bool corrected = model.experts.router == engine::RouterKind::kSigmoid;
    const auto balanced = [&](Layout layout) {
      layout.micro_batch_tokens = 400;
      layout.balance = {0.3, corrected ? 0.02 : 0.0};
      return train(layout, model, at::kDouble, at::kDouble);
    };
    const Outcome whole = balanced({});
    const Outcome plain = train({.micro_batch_tokens = 400}, model, at::kDouble, at::kDouble);
    CHECK(plain.balance_losses.empty());
    REQUIRE(whole.balance_losses.size() == kSteps);
    CHECK(whole.norms[0] != Approx(plain.norms[0]).epsilon(1e-4));
    for (const Layout& layout : layouts) {
      CAPTURE(model.model_type, layout.name());
      const Outcome found = balanced(layout);
      REQUIRE(found.micro_batches == 1);
      require_equal(found, whole, 1e-10);
      for (int64_t step = 0; step < kSteps; ++step) {
        CHECK(found.balance_losses[step] == Approx(whole.balance_losses[step]).epsilon(1e-10));
      }
      if (corrected) {
        CHECK(found.weights.back().equal(whole.weights.back()));
      }
    }
    if (corrected) {
      const at::Tensor start = test::router_correction(model.experts.count);
      CHECK((whole.weights.back() - start).abs().max().item<double>() > 0.019);
    }
  }
}

TEST_CASE("a model with gated delta nets trains as in one process on every mesh") {
  constexpr auto kZigzag = sp::Placement::kZigzag;
  const std::vector<Layout> layouts{
      {.ulysses = 2},
      {.ring = 2, .placement = kZigzag, .micro_batch_tokens = 60},
      {.ring = 2, .ring_impl = sp::RingImpl::kAllGather, .placement = kZigzag},
      {.ring = 3, .activations = {engine::Recompute::kFull}, .placement = kZigzag},
      {.ring = 2,
       .ulysses = 2,
       .activations = {engine::Recompute::kSelective},
       .placement = kZigzag},
      {.replicate = 2, .shared_prefix = false},
      {.shard = 2, .ulysses = 2, .activations = {engine::Recompute::kFull}},
      {.shard = 2, .ring = 2, .offload = rl::OptimizerOffload::kFull, .shared_prefix = false}};
  for (const bool experts : {false, true}) {
    const engine::ModelConfig model = test::hybrid_config(experts);
    const Outcome whole = train({}, model, at::kDouble, at::kDouble);
    CHECK(whole.norms[0] > 0.01);
    for (const Layout& layout : layouts) {
      CAPTURE(experts, layout.name());
      require_equal(train(layout, model, at::kDouble, at::kDouble), whole, 1e-10);
    }
  }
}

TEST_CASE("experts of several ranks beside gated delta nets train as in one process") {
  const engine::ModelConfig model = test::hybrid_config(/*experts=*/true);
  const Outcome whole = train({}, model, at::kDouble, at::kDouble);
  const sp::RingImpl gathered = sp::RingImpl::kAllGather;
  for (const bool shared : {true, false}) {
    const std::vector<Layout> layouts{
        {.ring = 2,
         .ulysses = 2,
         .expert = 4,
         .shared_prefix = shared,
         .placement = sp::Placement::kZigzag},
        {.shard = 2,
         .ulysses = 2,
         .activations = {engine::Recompute::kFull},
         .expert = 2,
         .shared_prefix = shared},
        {.ring = 2, .expert = 2, .ring_impl = gathered, .shared_prefix = shared}};
    for (const Layout& layout : layouts) {
      CAPTURE(layout.name());
      require_equal(train(layout, model, at::kDouble, at::kDouble), whole, 1e-10);
    }
  }
}

TEST_CASE("ranks of a shard that have no document take part") {
  const Outcome whole = train({.documents = 3}, tied(), at::kDouble, at::kDouble);
  for (const int64_t stage : {1, 2, 3}) {
    const Layout layout{
        .shard = 4, .stage = stage, .activations = kActivations[stage - 1], .documents = 3};
    const Outcome found = train(layout, tied(), at::kDouble, at::kDouble);
    CHECK(found.empty_micro_batches > 0);
    require_equal(found, whole, 1e-10);
  }
}

TEST_CASE("a bf16 model keeps its digits when it is sharded, and sends bf16 gradients by name") {
  const Outcome whole = train({}, tied(), at::kBFloat16, at::kFloat);
  const Layout sharded{.shard = 3};
  require_equal(train(sharded, tied(), at::kBFloat16, at::kFloat), whole, 2e-2);
  const Outcome exact = train(sharded, tied(), at::kBFloat16, at::kFloat);
  const Outcome rounded = train(sharded, tied(), at::kBFloat16, at::kBFloat16);
  CHECK(exact.norms[0] != rounded.norms[0]);
  CHECK(rounded.norms[0] == Approx(exact.norms[0]).epsilon(1e-2));
  CHECK(2 * rounded.sent.at("gradients") == exact.sent.at("gradients"));
}

TEST_CASE("a unit of 7 elements on 4 ranks: slices, gather and assignment") {
  const Layout layout{.shard = 4};
  test::run_ranks_in_memory(
      rl::mesh_shape(layout.config()),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        engine::ComputeContext context(at::kFloat);
        context.sharding = rl::make_sharding(layout.config(), groups);
        engine::ParamUnit unit("u", {{"a", {3}}, {"b", {2, 2}}}, context);
        TORCH_CHECK(unit.flat().numel() == 2 && unit.layout().numel() == 7);
        assign(unit.storage(), 0, at::tensor({1.f, 2.f, 3.f}));
        assign(unit.storage(), 1, at::tensor({4.f, 5.f, 6.f, 7.f}).view({2, 2}));
        TORCH_CHECK(at::equal(unit.gathered().gather_flat(), at::arange(1, 8).to(at::kFloat)));
        std::string text;
        for (const engine::NamedSlice& slice : unit.storage().slices()) {
          text += slice.name + std::to_string(slice.begin) + "+" +
                  std::to_string(slice.values.numel()) + " ";
        }
        const std::vector<std::string> expected{"a0+2 ", "a2+1 b0+1 ", "b1+2 ", "b3+1 "};
        TORCH_CHECK(text == expected[mesh.rank()], text);
        TORCH_CHECK(unit.flat().detach()[1].item<float>() ==
                    (mesh.rank() == 3 ? 0.f : 2.f + 2.f * mesh.rank()));
      },
      rl::sharding_axes(layout.config()));
}

// Bytes that rank 0 sends in the shard's group in kSteps steps, by the closed formulas. A gather
// sends a rank's range to all others; a gradient's sum sends the ranges of all others.
struct Bytes {
  int64_t parameters = 0, gradients = 0;
};

Bytes expected_bytes(const Layout& layout, const engine::ModelConfig& model, int64_t element,
                     int64_t micro_batches) {
  const engine::Decoder decoder(model, at::kFloat);  // for the sizes of its units
  const auto units = decoder.units();
  Bytes bytes;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const bool is_layer = u > 0 && u <= static_cast<std::size_t>(model.num_hidden_layers);
    const bool is_embedding = u == 0;
    const bool is_head = model.tie_word_embeddings ? is_embedding : u + 1 == units.size();
    // Layers and the head are gathered again for the backward. A tied embedding serves twice.
    const int64_t gathers = layout.stage < 3 ? 1
                            : is_layer       ? 2 * micro_batches
                                             : (is_head ? 2 : 0) * micro_batches +
                                             (is_embedding || !is_head ? micro_batches : 0);
    const int64_t uses = is_embedding && is_head ? 2 : 1;
    const int64_t sums = layout.stage == 1 ? 1 : uses * micro_batches;
    const int64_t n = units[u]->layout().numel(), c = (n + layout.shard - 1) / layout.shard;
    bytes.parameters += kSteps * gathers * (layout.shard - 1) * c * element;
    bytes.gradients += kSteps * sums * (n - c) * 4;
  }
  return bytes;
}

TEST_CASE("gathers and sums of gradients send the bytes of the formulas") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t stage = GENERATE(1, 2, 3);
  for (const auto& model : {tied(), untied()}) {
    for (const engine::ActivationOptions& activations : kActivations) {
      const Layout layout{.shard = 3, .stage = stage, .activations = activations};
      CAPTURE(layout.name(), dtype, model.tie_word_embeddings);
      const Outcome found = train(layout, model, dtype, at::kFloat);
      REQUIRE(found.micro_batches > 1);
      const Bytes expected = expected_bytes(
          layout, model, static_cast<int64_t>(at::elementSize(dtype)), found.micro_batches);
      CHECK(found.sent.at("parameters") == expected.parameters);
      CHECK(found.sent.at("gradients") == expected.gradients);
    }
  }
}

TEST_CASE("the world decides the number of replicas, or says which ranks would be left over") {
  rl::ParallelConfig parallel;
  parallel.data_parallel_shard_size = 2;
  parallel.ulysses_parallel_size = 3;
  const auto replicas = [&](int64_t world) {
    rl::ParallelConfig fixed = parallel;
    rl::fix_replicas(fixed, world);
    return fixed.data_parallel_replicate_size;
  };
  CHECK(replicas(0) == 1);
  CHECK(replicas(6) == 1);
  CHECK(replicas(18) == 3);
  CHECK_THROWS_WITH(replicas(8), Catch::Contains("8 ranks do not divide into copies of 6 ranks") &&
                                     Catch::Contains("2 would be left over"));
  parallel.data_parallel_replicate_size = 5;
  CHECK(replicas(8) == 5);  // named, so that the launcher compares it
}
