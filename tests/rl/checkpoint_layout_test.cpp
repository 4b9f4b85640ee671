// Guards: a checkpoint that loads at another layout of ranks with other values, or not at all; an
// element that no rank of a layout writes; a file of columns that is read as rows; a message that
// does not say which element is missing.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/pipeline.h"
#include "engine/models/weight_export.h"
#include "engine/runner/model_runner.h"
#include "rl/checkpoint/checkpoint_reader.h"
#include "rl/checkpoint/manifest.h"
#include "rl/checkpoint/part_file.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensor_parallel.h"
#include "tests/support/tiny_model.h"

using namespace ringside;
namespace fs = std::filesystem;
using Catch::Contains;

namespace {

struct Layout {
  const char* name;
  sp::MeshShape shape;
  int64_t zero_stage = 0;
};

const std::array kLayouts{
    Layout{"one", {}},
    Layout{"tensor 2", {.tensor = 2}},
    Layout{"tensor 3", {.tensor = 3}},
    Layout{"tensor 2 x shard 2", {.dp_shard = 2, .tensor = 2}, 3},
    Layout{"experts 2", {.ulysses = 2, .expert = 2}},
    Layout{"tensor 2, experts 2", {.expert = 2, .tensor = 2}},
    Layout{"pipeline 2", {.pipeline = 2}},
    Layout{"pipeline 2 x shard 2 x tensor 2", {.dp_shard = 2, .pipeline = 2, .tensor = 2}, 3},
};

std::vector<sp::Axes> axes_of_groups() {
  std::vector<sp::Axes> axes = test::tensor_axes();
  axes.push_back(sp::axes::kPipeline);
  return axes;
}

// What a parameter or a moment of this name is: other values for each.
at::Tensor values_of(const std::string& name, const std::vector<int64_t>& shape) {
  const auto seed = static_cast<double>(std::hash<std::string>()(name) % 1000);
  return at::arange(c10::multiply_integers(shape), at::kDouble).add(seed).sin();
}

engine::NamedSlice whole_of(const engine::NamedSlice& slice) {
  return {slice.name, slice.shape, 0, values_of(slice.name, slice.shape)};
}

// Deepseek V3 with Muon, whose matrices have one moment; other models with AdamW alone.
engine::AdamWOptions optimizer_of(const engine::ModelConfig& config) {
  return {.muon = config.experts.router == engine::RouterKind::kSigmoid
                      ? std::optional(engine::MuonOptions{})
                      : std::nullopt};
}

engine::ModelRunner runner_of(const engine::ModelConfig& config, const sp::ProcessGroups& groups,
                              const Layout& layout) {
  engine::ComputeContext context = test::tensor_context(groups, at::kDouble, layout.zero_stage);
  if (layout.shape.pipeline > 1) {
    context.pipeline = std::make_shared<const engine::Pipeline>(
        engine::Pipeline{{layout.shape.pipeline}, groups.tensors(sp::axes::kPipeline)});
  }
  std::vector<std::unique_ptr<engine::Decoder>> stages;
  for (const engine::Stage& stage : engine::own_stages(config, context.pipeline.get())) {
    stages.push_back(std::make_unique<engine::Decoder>(config, stage, context));
  }
  return {std::make_unique<engine::LanguageModel>(std::move(stages)), groups, optimizer_of(config)};
}

void save(const fs::path& dir, const engine::ModelConfig& config, const Layout& layout) {
  fs::create_directories(dir);
  rl::CheckpointManifest manifest;
  manifest.state = {1, 1, 1, 7, "run"};
  manifest.parts.resize(layout.shape.world_size());
  test::run_ranks_in_memory(
      layout.shape,
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        const auto runner = runner_of(config, groups, layout);
        for (const engine::NamedSlice& slice : runner.state_slices()) {
          engine::copy_shared(whole_of(slice), slice);
        }
        auto written = runner.state_to_write();
        for (engine::NamedSlice& slice : written) {
          slice.name = "policy/" + slice.name;
        }
        manifest.parts[mesh.rank()] =
            rl::write_part(dir, {1, mesh.rank(), layout.shape.world_size()}, written);
      },
      axes_of_groups());
  rl::write_manifest(dir, manifest);
}

}  // namespace

TEST_CASE("a checkpoint of any layout of ranks loads at any other, to the bit") {
  const bool latent = GENERATE(true, false);
  const engine::ModelConfig config = latent ? test::latent_config() : test::hybrid_config(true);
  const test::TemporaryDirectory dir;
  for (const Layout& from : kLayouts) {
    save(dir.path() / from.name, config, from);
  }
  for (const Layout& to : kLayouts) {
    // Catch's assertions belong to one thread; the ranks are several.
    std::mutex mutex;
    std::vector<std::string> different;
    int64_t compared = 0;
    test::run_ranks_in_memory(
        to.shape,
        [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
          const auto runner = runner_of(config, groups, to);
          const auto slices = runner.state_slices();
          for (const Layout& from : kLayouts) {
            for (const engine::NamedSlice& slice : slices) {
              slice.values.zero_();
            }
            rl::CheckpointReader(dir.path() / from.name).fill("policy", slices);
            for (const engine::NamedSlice& slice : slices) {
              engine::NamedSlice expected = slice;
              expected.values = at::zeros_like(slice.values);
              engine::copy_shared(whole_of(slice), expected);
              const std::lock_guard lock(mutex);
              ++compared;
              if (!at::equal(slice.values, expected.values)) {
                different.push_back(slice.name + " of rank " + std::to_string(mesh.rank()) +
                                    " from " + from.name);
              }
            }
          }
        },
        axes_of_groups());
    CAPTURE(to.name, different);
    CHECK(different.empty());
    CHECK(compared > 0);
  }
}

TEST_CASE("each element of a checkpoint is written once, whatever the layout of ranks") {
  const engine::ModelConfig config = test::latent_config();
  const test::TemporaryDirectory dir;
  std::vector<int64_t> bytes;
  for (const Layout& layout : kLayouts) {
    save(dir.path() / layout.name, config, layout);
    const rl::CheckpointReader reader(dir.path() / layout.name);
    int64_t elements = 0;
    for (std::size_t p = 0; p < reader.manifest().parts.size(); ++p) {
      const rl::PartReader part(dir.path() / layout.name, reader.manifest().parts[p],
                                {1, static_cast<int64_t>(p), layout.shape.world_size()});
      for (const auto& entry : part.entries()) {
        elements += entry.end - entry.begin;
      }
    }
    bytes.push_back(elements);
  }
  CHECK(std::ranges::all_of(bytes, [&](int64_t of_layout) { return of_layout == bytes[0]; }));
}

TEST_CASE("slices of columns are stored by their columns, and a missing element is named") {
  const test::TemporaryDirectory dir;
  const at::Tensor matrix = at::arange(12, at::kDouble).view({3, 4});
  const auto columns = [&](int64_t begin, int64_t end) -> engine::NamedSlice {
    return {"m/w",
            {3, 4},
            0,
            matrix.narrow(1, begin, end - begin).reshape({-1}),
            sp::Range{begin, end}};
  };
  const auto written = [&](const std::vector<engine::NamedSlice>& slices) {
    rl::CheckpointManifest manifest;
    manifest.state = {1, 1, 1, 7, "run"};
    manifest.parts = {rl::write_part(dir.path(), {1, 0, 1}, slices)};
    rl::write_manifest(dir.path(), manifest);
    return rl::CheckpointReader(dir.path());
  };
  CHECK(at::equal(written({columns(0, 1), columns(1, 4)}).tensor("m/w"), matrix));
  const at::Tensor rows = at::zeros({5}, at::kDouble);
  written({columns(0, 1), columns(1, 4)}).fill("m", {{"w", {3, 4}, 6, rows}});
  CHECK(at::equal(rows, at::arange(6, 11, at::kDouble)));
  // The last element of the columns from 1 on is in no part.
  const auto short_of = engine::part_of(columns(1, 4), 0, 8);
  CHECK_THROWS_WITH(written({columns(0, 1), short_of}).tensor("m/w"),
                    Contains("lacks element 11; expected 12 elements from 0 on"));
  const engine::NamedSlice wanted{"w", {3, 4}, 0, at::zeros({6}, at::kDouble), sp::Range{2, 4}};
  CHECK_THROWS_WITH(written({columns(0, 1), short_of}).fill("m", {wanted}),
                    Contains("lacks element row 2, column 3; expected 6 elements from row 0"));
  engine::NamedSlice outside = columns(1, 4);
  outside.columns = sp::Range{2, 5};
  CHECK_THROWS_WITH(written({outside}), Contains("which its parameter's shape does not hold"));
}
