// Guards: a patch in another place of its frame or window than its pixels have; segments that do
// not cover the patches once; learned positions taken from the wrong rows of the table.
#include "engine/vision/patch_tables.h"

#include <ATen/ATen.h>

#include <numeric>
#include <stdexcept>

#include "engine/vision/position_taps.h"
#include "tests/support/catch.h"

namespace ringside::engine {
namespace {

using Places = std::vector<int64_t>;
using Runs = std::vector<SegmentRun>;

VisionConfig config(int64_t window_tokens) {
  VisionConfig config;
  config.patch = 4;
  config.window = window_tokens * 2 * 4;
  return config;
}

int64_t length(const Runs& runs) {
  return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                         [](int64_t sum, const auto& run) { return sum + run.count * run.length; });
}

TEST_CASE("the patches of a token follow each other, row by row") {
  const std::vector<PatchGrid> grids{{1, 2, 4}};
  const PatchTables tables = patch_tables(config(0), grids);
  CHECK(tables.patches == 8);
  CHECK(tables.row_p == Places{0, 0, 1, 1, 0, 0, 1, 1});
  CHECK(tables.column_p == Places{0, 1, 0, 1, 2, 3, 2, 3});
  CHECK(tables.order_n.empty());
  CHECK((tables.segments(/*windowed=*/false) == Runs{{1, 8}}));
}

TEST_CASE("patches attend within their frame, and frames of one size are one run") {
  const std::vector<PatchGrid> grids{{2, 2, 4}, {1, 4, 2}, {1, 2, 2}};
  const PatchTables tables = patch_tables(config(0), grids);
  CHECK((tables.frames == Runs{{3, 8}, {1, 4}}));
  CHECK(tables.patches == 28);
}

// 3 x 5 tokens in windows of 2 x 2: the last row and column of windows are cut off.
TEST_CASE("windows at the edges of a frame are smaller, and all tokens are in one") {
  const std::vector<PatchGrid> grids{{1, 6, 10}};
  const PatchTables tables = patch_tables(config(2), grids);
  CHECK(tables.order_n == Places{0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14});
  CHECK((tables.windows == Runs{{2, 16}, {3, 8}, {1, 4}}));
  for (std::size_t i = 0; i < tables.order_n.size(); ++i) {
    CHECK(tables.place_n[tables.order_n[i]] == static_cast<int64_t>(i));
  }
  // Of the third token of the second window: row 1, column 2 of tokens.
  CHECK(Places(tables.row_p.begin() + 24, tables.row_p.begin() + 28) == Places{2, 2, 3, 3});
  CHECK(Places(tables.column_p.begin() + 24, tables.column_p.begin() + 28) == Places{4, 5, 4, 5});
}

TEST_CASE("windows of several frames and images cover their tokens in order") {
  const std::vector<PatchGrid> grids{{2, 4, 6}, {1, 6, 2}};
  const PatchTables tables = patch_tables(config(2), grids);
  CHECK(length(tables.windows) == tables.patches);
  CHECK(length(tables.frames) == tables.patches);
  CHECK(tables.order_n == Places{0, 1, 3, 4, 2, 5, 6, 7, 9, 10, 8, 11, 12, 13, 14});
  CHECK((tables.windows == Runs{{1, 16}, {1, 8}, {1, 16}, {2, 8}, {1, 4}}));
}

TEST_CASE("without images all tables are empty") {
  const PatchTables tables = patch_tables(config(2), {});
  CHECK(tables.patches == 0);
  CHECK(tables.windows.empty());
  CHECK(tables.frames.empty());
}

TEST_CASE("grids that are no multiples of the merged patches are refused") {
  for (const PatchGrid grid :
       {PatchGrid{1, 3, 4}, PatchGrid{1, 4, 5}, PatchGrid{0, 2, 2}, PatchGrid{1, 0, 2}}) {
    const std::vector<PatchGrid> grids{grid};
    CHECK_THROWS_AS(patch_tables(config(0), grids), std::invalid_argument);
  }
}

TEST_CASE("an image as large as the table takes each row of it once") {
  const std::vector<PatchGrid> grids{{1, 4, 4}};
  const auto [rows, weights] = position_taps(4, 2, grids);
  // The share of each row of the table in each patch.
  at::Tensor share = at::zeros({16, 16});
  for (int64_t i = 0; i < 4; ++i) {
    share.index_put_({at::arange(16), rows[i]}, weights[i], /*accumulate=*/true);
  }
  const at::Tensor order = at::tensor({0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15});
  CHECK(at::allclose(share, at::eye(16).index_select(0, order), 0, 1e-6));
}

TEST_CASE("an image's corners are the table's, and between them positions are interpolated") {
  const std::vector<PatchGrid> grids{{1, 2, 6}};
  const auto [rows, weights] = position_taps(3, 2, grids);
  CHECK(at::allclose(weights.sum(0), at::ones({12})));
  // The column that the taps of each patch mean: columns 0 to 5 of the image are 0, 0.4, ... 2.
  const at::Tensor column = (rows.remainder(3) * weights).sum(0);
  const at::Tensor expected =
      at::tensor({0.0F, 0.4F, 0.0F, 0.4F, 0.8F, 1.2F, 0.8F, 1.2F, 1.6F, 2.0F, 1.6F, 2.0F});
  CHECK(at::allclose(column, expected));
  const at::Tensor row = (rows.div(3, "floor") * weights).sum(0);
  CHECK(at::allclose(row, at::tensor({0.0F, 0.0F, 2.0F, 2.0F}).repeat({3})));
}

}  // namespace
}  // namespace ringside::engine
