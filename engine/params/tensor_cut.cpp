#include "engine/params/tensor_cut.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ringside::engine {
namespace {

// The matrix that a parameter is.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 1;
};

Matrix matrix_of(const std::vector<int64_t>& shape) {
  if (shape.empty()) {
    throw std::invalid_argument("tensor cut: a parameter without dims is not cut");
  }
  Matrix matrix{shape.front(), 1};
  for (std::size_t d = 1; d < shape.size(); ++d) {
    matrix.columns *= shape[d];
  }
  return matrix;
}

void check_ranks(int64_t items, int64_t ranks) {
  if (items < 0 || ranks < 1) {
    throw std::invalid_argument("tensor cut: " + std::to_string(items) + " items over " +
                                std::to_string(ranks) + " ranks");
  }
}

void check_each(int64_t each) {
  if (each < 1) {
    throw std::invalid_argument("tensor cut: an item has at least 1 row or column, got " +
                                std::to_string(each));
  }
}

// Adds a range, unless it is empty; one that follows the last one makes it longer.
void append(std::vector<sp::Range>& ranges, sp::Range range) {
  if (range.empty()) {
    return;
  }
  if (!ranges.empty() && ranges.back().end == range.begin) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

}  // namespace

std::vector<sp::Range> even_items(int64_t items, int64_t ranks) {
  return even_units(items, 1, ranks);
}

std::vector<sp::Range> even_units(int64_t items, int64_t unit, int64_t ranks) {
  check_ranks(items, ranks);
  check_each(unit);
  const int64_t units = (items + unit - 1) / unit;
  std::vector<sp::Range> parts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const sp::Range part = sp::even_part(units, ranks, rank);
    parts.push_back({std::min(items, part.begin * unit), std::min(items, part.end * unit)});
  }
  return parts;
}

TensorCut cut_items(CutAlong along, std::span<const sp::Range> items_of, int64_t each) {
  check_each(each);
  TensorCut cut{along};
  for (const sp::Range& items : items_of) {
    append(cut.of_part.emplace_back(), {items.begin * each, items.end * each});
  }
  return cut;
}

TensorCut cut_blocks(std::span<const sp::Range> items_of, int64_t items,
                     std::span<const int64_t> each) {
  TensorCut cut;
  cut.of_part.resize(items_of.size());
  int64_t begin = 0;
  for (const int64_t rows : each) {
    check_each(rows);
    for (std::size_t part = 0; part < items_of.size(); ++part) {
      append(cut.of_part[part],
             {begin + items_of[part].begin * rows, begin + items_of[part].end * rows});
    }
    begin += items * rows;
  }
  return cut;
}

void check_cut(const TensorCut& cut, const std::vector<int64_t>& shape) {
  const Matrix matrix = matrix_of(shape);
  const bool by_rows = cut.along == CutAlong::kRows;
  const std::string what = by_rows ? "row " : "column ";
  const int64_t all = by_rows ? matrix.rows : matrix.columns;
  std::vector<sp::Range> ranges;
  for (const auto& part : cut.of_part) {
    ranges.insert(ranges.end(), part.begin(), part.end());
  }
  std::ranges::sort(ranges, {}, &sp::Range::begin);
  int64_t next = 0;
  for (const sp::Range& range : ranges) {
    if (range.begin < 0 || range.end > all || range.size() < 0) {
      throw std::invalid_argument("tensor cut: " + what + std::to_string(range.begin) + " to " +
                                  std::to_string(range.end) + " of a parameter with " +
                                  std::to_string(all));
    }
    if (range.begin != next) {
      throw std::invalid_argument("tensor cut: " + what +
                                  std::to_string(std::min(next, range.begin)) + " is in " +
                                  (range.begin > next ? "no part" : "two parts"));
    }
    next = range.end;
  }
  if (next != all) {
    throw std::invalid_argument("tensor cut: " + what + std::to_string(next) + " is in no part");
  }
}

std::vector<int64_t> piece_shape(const TensorCut& cut, const std::vector<int64_t>& shape,
                                 int64_t part) {
  matrix_of(shape);
  const int64_t size = sp::total_size(cut.of_part.at(part));
  std::vector<int64_t> piece = shape;
  if (cut.along == CutAlong::kColumns && shape.size() != 2) {
    throw std::invalid_argument("tensor cut: columns of a parameter with " +
                                std::to_string(shape.size()) + " dims, expected 2");
  }
  piece[cut.along == CutAlong::kRows ? 0 : 1] = size;
  return piece;
}

std::vector<ElementRun> runs_of_piece(const TensorCut& cut, const std::vector<int64_t>& shape,
                                      int64_t part) {
  piece_shape(cut, shape, part);
  const Matrix matrix = matrix_of(shape);
  const std::vector<sp::Range>& ranges = cut.of_part[part];
  std::vector<ElementRun> runs;
  int64_t in_piece = 0;
  const auto add = [&](int64_t begin, int64_t size) {
    const bool follows = !runs.empty() && runs.back().in_parameter + runs.back().size == begin;
    if (follows) {
      runs.back().size += size;
    } else if (size > 0) {
      runs.push_back({begin, in_piece, size});
    }
    in_piece += size;
  };
  if (cut.along == CutAlong::kRows) {
    for (const sp::Range& range : ranges) {
      add(range.begin * matrix.columns, range.size() * matrix.columns);
    }
    return runs;
  }
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (const sp::Range& range : ranges) {
      add(row * matrix.columns + range.begin, range.size());
    }
  }
  return runs;
}

}  // namespace ringside::engine
