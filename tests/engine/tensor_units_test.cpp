// Guards: an element of a parameter that no tensor-parallel rank holds, or two, or that is put back
// in another place; starting values and exported weights that depend on the number of ranks; a
// gradient of a parameter that all ranks use whole, summed over too few of them.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/acting_values.h"
#include "engine/models/weight_export.h"
#include "engine/params/param_unit.h"
#include "engine/params/quantised_matrix.h"
#include "engine/runner/gradient_sync.h"
#include "tests/support/assertion_lock.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_parallel.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

// Parameters of every kind of cut: rows, columns, several ranges of rows, and one of which the last
// of three ranks has nothing.
std::vector<ParamSpec> cut_specs(int64_t ranks) {
  const std::array<int64_t, 3> blocks{2, 2, 1};
  return {{"rows", {7, 3}, false, cut_items(CutAlong::kRows, even_items(7, ranks))},
          {"columns", {5, 8}, false, cut_items(CutAlong::kColumns, even_items(4, ranks), 2)},
          {"blocks", {10, 2}, false, cut_blocks(even_items(2, ranks), 2, blocks)},
          {"vector", {2}, false, cut_items(CutAlong::kRows, even_items(2, ranks))}};
}

at::Tensor numbered(const ParamSpec& spec) {
  return at::arange(spec.numel(), at::kDouble).add(1).view(spec.shape);
}

// How many ranks hold each element of each parameter, counted through their slices.
class Holders {
 public:
  explicit Holders(const std::vector<ParamSpec>& specs) {
    for (const ParamSpec& spec : specs) {
      counts_.push_back(at::zeros({spec.numel()}, at::kLong));
    }
  }
  void add(const UnitStorage& storage) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      const ParamSpec& spec = storage.layout().specs()[i];
      for (const NamedSlice& slice : storage.slices_of(storage.flat().detach(), i)) {
        const at::Tensor held = at::zeros({spec.numel()}, at::kLong);
        copy_shared(
            {slice.name, slice.shape, slice.begin, at::ones_like(slice.values), slice.columns},
            {spec.name, spec.shape, 0, held});
        counts_[i] += held;
      }
    }
  }
  bool each_is(int64_t count) const {
    return std::ranges::all_of(
        counts_, [&](const at::Tensor& held) { return held.eq(count).all().item<bool>(); });
  }

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> counts_;
};

}  // namespace

TEST_CASE("rectangles of two runs of a matrix are the elements that both have, once") {
  std::mt19937 random(3);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 3000; ++round) {
    const int64_t rows = 1 + below(12), columns = 1 + below(6);
    const at::Tensor matrix = at::arange(rows * columns).view({rows, columns});
    const auto run = [&]() -> NamedSlice {
      const int64_t begin = below(columns), end = begin + 1 + below(columns - begin);
      const at::Tensor block = matrix.narrow(1, begin, end - begin).reshape({-1});
      const int64_t first = below(block.numel()), count = 1 + below(block.numel() - first);
      return {"w", {rows, columns}, first, block.narrow(0, first, count), sp::Range{begin, end}};
    };
    const NamedSlice from = run();
    NamedSlice into = run();
    const at::Tensor expected =
        at::where(at::isin(into.values, from.values), into.values, at::full({}, -1));
    into.values = at::full({into.values.numel()}, -1);
    const int64_t copied = copy_shared(from, into);
    CHECK(at::equal(into.values, expected));
    CHECK(copied == expected.ge(0).sum().item<int64_t>());
  }
}

TEST_CASE("tensor-parallel ranks hold each element once and gather the whole parameters") {
  const int64_t tensor = GENERATE(2, 3);
  const int64_t zero_stage = GENERATE(0, 3);
  const std::vector<ParamSpec> specs = cut_specs(tensor);
  Holders holders(specs);
  test::run_ranks_in_memory(
      {.ulysses = 2, .tensor = tensor},
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        const ComputeContext context = test::tensor_context(groups, at::kDouble, zero_stage);
        const ParamUnit unit("unit", specs, context);
        for (std::size_t i = 0; i < specs.size(); ++i) {
          assign(unit.storage(), i, numbered(specs[i]));
        }
        unit.changed();
        holders.add(unit.storage());
        const at::Tensor whole = unit.gathered().gather_flat();
        const std::vector<Weight> own = unit.gathered().materialize(at::kDouble);
        const auto lock = test::assertion_lock();
        CHECK_FALSE(unit.storage().is_whole());
        for (std::size_t i = 0; i < specs.size(); ++i) {
          CHECK(at::equal(unit.layout().view_of(whole, i), numbered(specs[i])));
          CHECK(at::equal(own[i].value, piece_of(numbered(specs[i]), specs[i].cut,
                                                 mesh.coordinate(sp::axes::kTensor))));
        }
      },
      test::tensor_axes());
  CHECK(holders.each_is(zero_stage == 0 ? 2 : 1));
}

TEST_CASE("a unit's parameters are cut alike, and for the ranks that there are") {
  const std::vector<ParamSpec> two = cut_specs(2);
  CHECK_THROWS_WITH(UnitLayout("unit", {two[0], {"whole", {2}}}),
                    Catch::Contains("whole is cut into 0 parts and rows into 2"));
  ParamSpec apart{
      "apart", {2, 4}, false, {CutAlong::kColumns, {{{0, 1}, {2, 3}}, {{1, 2}, {3, 4}}}}};
  CHECK_THROWS_WITH(UnitLayout("unit", {apart}), Catch::Contains("2 ranges of columns"));
  CHECK_THROWS_WITH(ParamUnit("unit", two, at::kDouble), Catch::Contains("no sharding"));
  test::run_ranks_in_memory(
      {.tensor = 3},
      [&](const sp::Mesh& /*mesh*/, const sp::ProcessGroups& groups) {
        const ComputeContext context = test::tensor_context(groups, at::kDouble);
        const auto lock = test::assertion_lock();
        CHECK_THROWS_WITH(ParamUnit("unit", two, context),
                          Catch::Contains("2 parts, for 3 tensor-parallel ranks"));
      },
      test::tensor_axes());
}

TEST_CASE("gradients of whole parameters are summed over tensor ranks, of cut ones at their own") {
  const int64_t zero_stage = GENERATE(0, 1, 3);
  const std::vector<ParamSpec> specs = cut_specs(2);
  test::run_ranks_in_memory(
      {.ulysses = 2, .tensor = 2},
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        const ComputeContext context = test::tensor_context(groups, at::kDouble, zero_stage);
        ComputeContext of_whole = context;
        of_whole.sharding = context.tensor->whole;
        ParamUnit cut("cut", specs, context), whole("whole", {{"norm", {5}}}, of_whole);
        ParamUnit adapters("adapters", {{"a", {3}}}, unsharded_context(context));
        GradientSync sync({&cut, &whole, &adapters}, groups.tensors(sp::axes::kLoss), context);
        const auto u = mesh.coordinate(sp::axes::kUlysses), t = mesh.coordinate(sp::axes::kTensor);
        const double factor = std::pow(10.0, static_cast<double>(2 * u + t));
        at::Tensor loss = at::zeros({}, at::kDouble);
        for (const ParamUnit* unit : {&cut, &whole, &adapters}) {
          for (const Weight& weight : unit->gathered().materialize(at::kDouble)) {
            loss = loss + (weight.leaf * factor).sum();
          }
        }
        sync.expect_last_backward();
        loss.backward();
        sync.end_backward();
        sync.finish();
        const auto each_is = [](const ParamUnit& unit, double value) {
          for (const NamedSlice& slice : unit.storage().slices_of(unit.grad())) {
            CHECK(slice.values.eq(value).all().item<bool>());
          }
        };
        const auto lock = test::assertion_lock();
        each_is(cut, t == 0 ? 101.0 : 1010.0);
        each_is(whole, 1111.0);
        each_is(adapters, 1111.0);
      },
      test::tensor_axes());
}

TEST_CASE("starting values and exported weights do not depend on tensor-parallel ranks") {
  const int64_t tensor = GENERATE(2, 3);
  const auto config = GENERATE(0, 1, 2, 3, 4);
  const ModelConfig model =
      std::array{test::tiny_config(), test::latent_config(), test::stacked_config(),
                 test::hybrid_config(false), test::hybrid_config(true)}[config];
  const Decoder alone = test::random_decoder(model, at::kDouble, 7);
  test::run_ranks_in_memory(
      {.tensor = tensor},
      [&](const sp::Mesh& /*mesh*/, const sp::ProcessGroups& groups) {
        Decoder decoder(model, test::tensor_context(groups, at::kDouble, 0));
        decoder.init_random(7, 0.2);
        const bool same_specs = WeightView(decoder).specs() == WeightView(alone).specs();
        std::size_t equal = 0, exported = 0;
        export_weights(
            decoder,
            [&](UnitExport& units) {
              while (const auto unit = units.next()) {
                equal += at::equal(unit->values(), effective_values(alone, exported++)) ? 1 : 0;
              }
            },
            *groups.tensors(sp::axes::kWorld));
        const auto lock = test::assertion_lock();
        CHECK(same_specs);
        CHECK(exported > 0);
        CHECK(equal == exported);
      },
      test::tensor_axes());
}

TEST_CASE("a quantised matrix is cut between its blocks, with the values of the whole") {
  const auto format = GENERATE(QuantisedFormat::kNf4, QuantisedFormat::kInt8);
  const at::Tensor matrix = at::randn({6, 256}, at::kFloat);
  const QuantisedMatrix whole = QuantisedMatrix::of(matrix, format);
  const TensorCut rows = cut_items(CutAlong::kRows, even_items(6, 4));
  const TensorCut columns = cut_items(CutAlong::kColumns, even_units(256, 64, 3));
  for (const auto& [cut, parts] : {std::pair{rows, 4}, std::pair{columns, 3}}) {
    for (int64_t part = 0; part < parts; ++part) {
      CHECK(at::equal(whole.piece(cut, part).unpack(at::kFloat),
                      piece_of(whole.unpack(at::kFloat), cut, part)));
    }
  }
  if (format == QuantisedFormat::kNf4) {
    const TensorCut inside = cut_items(CutAlong::kColumns, even_items(256, 3));
    CHECK_THROWS_WITH(whole.piece(inside, 0), Catch::Contains("cut a block of 64 elements of nf4"));
  }
}

}  // namespace ringside::engine
