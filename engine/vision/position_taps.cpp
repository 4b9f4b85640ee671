#include "engine/vision/position_taps.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <vector>

namespace ringside::engine {
namespace {

// Along one side of an image: the two rows (or columns) of the table for each row (or column) of
// patches, and the weight of the second.
struct SideTaps {
  std::vector<int64_t> low, high;
  std::vector<float> share;  // of the high one
};

SideTaps side_taps(int64_t table, int64_t patches) {
  // LibTorch's, whose roundings are those of transformers.
  const at::Tensor places = at::linspace(0, table - 1, patches, at::kFloat);
  const float* const place = places.const_data_ptr<float>();
  SideTaps taps;
  for (int64_t i = 0; i < patches; ++i) {
    const auto low = static_cast<int64_t>(place[i]);
    taps.low.push_back(low);
    taps.high.push_back(std::min(low + 1, table - 1));
    taps.share.push_back(place[i] - static_cast<float>(low));
  }
  return taps;
}

// One of the four taps of all patches.
struct Tap {
  std::vector<int64_t> row;
  std::vector<float> weight;
};

void add_frame(const SideTaps& down, const SideTaps& across, int64_t side, int64_t merge,
               std::array<Tap, 4>& taps) {
  const auto rows = static_cast<int64_t>(down.low.size());
  const auto columns = static_cast<int64_t>(across.low.size());
  for (int64_t patch = 0; patch < rows * columns; ++patch) {
    const int64_t token = patch / (merge * merge), inside = patch % (merge * merge);
    const int64_t y = token / (columns / merge) * merge + inside / merge;
    const int64_t x = token % (columns / merge) * merge + inside % merge;
    for (std::size_t i = 0; i < taps.size(); ++i) {
      const bool is_low = i / 2 == 1, is_right = i % 2 == 1;
      taps[i].row.push_back((is_low ? down.high : down.low)[y] * side +
                            (is_right ? across.high : across.low)[x]);
      taps[i].weight.push_back((is_low ? down.share[y] : 1 - down.share[y]) *
                               (is_right ? across.share[x] : 1 - across.share[x]));
    }
  }
}

}  // namespace

PositionTaps position_taps(int64_t side, int64_t merge, std::span<const PatchGrid> grids) {
  std::array<Tap, 4> taps;
  for (const PatchGrid& grid : grids) {
    const SideTaps down = side_taps(side, grid.height), across = side_taps(side, grid.width);
    for (int64_t t = 0; t < grid.t; ++t) {
      add_frame(down, across, side, merge, taps);
    }
  }
  std::vector<at::Tensor> rows, weights;
  for (const Tap& tap : taps) {
    rows.push_back(at::tensor(tap.row, at::kLong));
    weights.push_back(at::tensor(tap.weight, at::kFloat));
  }
  return {at::stack(rows), at::stack(weights)};
}

}  // namespace ringside::engine
