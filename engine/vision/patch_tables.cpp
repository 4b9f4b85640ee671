#include "engine/vision/patch_tables.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ringside::engine {
namespace {

void check_grid(const PatchGrid& grid, int64_t merge) {
  if (grid.t < 1 || grid.height < merge || grid.width < merge || grid.height % merge != 0 ||
      grid.width % merge != 0) {
    throw std::invalid_argument("vision tower: a grid of " + std::to_string(grid.t) + " x " +
                                std::to_string(grid.height) + " x " + std::to_string(grid.width) +
                                " patches, expected multiples of merge = " + std::to_string(merge));
  }
}

void add_segment(std::vector<SegmentRun>& runs, int64_t length) {
  if (!runs.empty() && runs.back().length == length) {
    ++runs.back().count;
  } else {
    runs.push_back({1, length});
  }
}

// Tokens of a frame, each with its place.
struct FrameShape {
  int64_t rows, columns;  // tokens
  int64_t first;          // of its tokens, among those of all images
};

// Adds the tokens of a frame, window by window.
void add_windows(const FrameShape& frame, const VisionConfig& config, PatchTables& tables) {
  const int64_t side = config.window_tokens();
  for (int64_t top = 0; top < frame.rows; top += side) {
    const int64_t bottom = std::min(top + side, frame.rows);
    for (int64_t left = 0; left < frame.columns; left += side) {
      const int64_t right = std::min(left + side, frame.columns);
      for (int64_t row = top; row < bottom; ++row) {
        for (int64_t column = left; column < right; ++column) {
          tables.order_n.push_back(frame.first + row * frame.columns + column);
        }
      }
      add_segment(tables.windows, (bottom - top) * (right - left) * config.patches_of_token());
    }
  }
}

// Adds the patches of a frame in the order of patch_rows().
void add_places(const FrameShape& frame, int64_t merge, PatchTables& tables) {
  for (int64_t token = 0; token < frame.rows * frame.columns; ++token) {
    const int64_t top = token / frame.columns * merge, left = token % frame.columns * merge;
    for (int64_t i = 0; i < merge * merge; ++i) {
      tables.row_p.push_back(top + i / merge);
      tables.column_p.push_back(left + i % merge);
    }
  }
}

// What belongs to the patches of each token, in another order of tokens.
std::vector<int64_t> in_order(const std::vector<int64_t>& values,
                              const std::vector<int64_t>& order_n, int64_t patches_of_token) {
  std::vector<int64_t> ordered;
  ordered.reserve(values.size());
  for (const int64_t token : order_n) {
    const auto begin = values.begin() + token * patches_of_token;
    ordered.insert(ordered.end(), begin, begin + patches_of_token);
  }
  return ordered;
}

void put_windows_in_order(const VisionConfig& config, PatchTables& tables) {
  tables.place_n.resize(tables.order_n.size());
  for (std::size_t i = 0; i < tables.order_n.size(); ++i) {
    tables.place_n[tables.order_n[i]] = static_cast<int64_t>(i);
  }
  for (std::vector<int64_t>* places : {&tables.row_p, &tables.column_p}) {
    *places = in_order(*places, tables.order_n, config.patches_of_token());
  }
}

}  // namespace

PatchTables patch_tables(const VisionConfig& config, std::span<const PatchGrid> grids) {
  PatchTables tables;
  int64_t tokens = 0;
  for (const PatchGrid& grid : grids) {
    check_grid(grid, config.merge);
    FrameShape frame{grid.height / config.merge, grid.width / config.merge, tokens};
    for (int64_t t = 0; t < grid.t; ++t) {
      add_segment(tables.frames, grid.height * grid.width);
      add_places(frame, config.merge, tables);
      if (config.window > 0) {
        add_windows(frame, config, tables);
      }
      frame.first += frame.rows * frame.columns;
    }
    tokens = frame.first;
  }
  tables.patches = tokens * config.patches_of_token();
  if (config.window > 0) {
    put_windows_in_order(config, tables);
  }
  return tables;
}

}  // namespace ringside::engine
