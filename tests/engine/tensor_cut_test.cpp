// Guards: elements of a parameter that no tensor rank has or two have, pieces that are put together
// in another order, heads whose query rows and output columns lie on different ranks, and numbers
// of heads, channels or ranks that do not divide each other.
#include "engine/params/tensor_cut.h"

#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

#include "sp/heads/head_split.h"

using namespace ringside;
using engine::CutAlong;
using engine::TensorCut;
using sp::Range;

namespace {

using Shape = std::vector<int64_t>;

int64_t numel(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// A parameter whose elements are their own places.
std::vector<int64_t> numbered(const Shape& shape) {
  std::vector<int64_t> values(numel(shape));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

// A part's piece, element by element: the definition that runs_of_piece() is held to.
std::vector<int64_t> piece_by_definition(const TensorCut& cut, const Shape& shape, int64_t part) {
  const int64_t rows = shape[0], columns = numel(shape) / rows;
  const auto indices = [&](bool is_cut, int64_t all) {
    std::vector<int64_t> list;
    for (const Range& range : is_cut ? cut.of_part[part] : std::vector<Range>{{0, all}}) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        list.push_back(i);
      }
    }
    return list;
  };
  std::vector<int64_t> piece;
  for (const int64_t row : indices(cut.along == CutAlong::kRows, rows)) {
    for (const int64_t column : indices(cut.along == CutAlong::kColumns, columns)) {
      piece.push_back(row * columns + column);
    }
  }
  return piece;
}

// Each element in one piece; pieces by their runs as by definition, and put together the parameter.
void check_pieces(const TensorCut& cut, const Shape& shape) {
  REQUIRE_NOTHROW(engine::check_cut(cut, shape));
  const std::vector<int64_t> whole = numbered(shape);
  std::vector<int64_t> assembled(whole.size(), -1);
  for (std::size_t part = 0; part < cut.of_part.size(); ++part) {
    const std::vector<int64_t> expected = piece_by_definition(cut, shape, part);
    std::vector<int64_t> piece;
    int64_t last = -1;
    for (const engine::ElementRun& run : engine::runs_of_piece(cut, shape, part)) {
      REQUIRE(run.in_piece == static_cast<int64_t>(piece.size()));
      REQUIRE(run.size > 0);
      REQUIRE(run.in_parameter != last);  // else the run before could have been longer
      last = run.in_parameter + run.size;
      for (int64_t i = run.in_parameter; i < last; ++i) {
        piece.push_back(whole[i]);
        REQUIRE(assembled[i] == -1);
        assembled[i] = whole[i];
      }
    }
    REQUIRE(piece == expected);
    REQUIRE(numel(engine::piece_shape(cut, shape, part)) == static_cast<int64_t>(piece.size()));
  }
  REQUIRE(assembled == whole);
}

TEST_CASE("rows and columns of any number of items over any number of ranks are cut once") {
  std::mt19937 random(11);
  const auto upto = [&](int64_t most) { return static_cast<int64_t>(random() % most) + 1; };
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t ranks = upto(9), items = upto(12), each = upto(4), other = upto(5);
    INFO("trial " << trial << ": " << items << " items of " << each << " over " << ranks);
    const auto items_of = engine::even_items(items, ranks);
    check_pieces(engine::cut_items(CutAlong::kRows, items_of, each), {items * each, other});
    check_pieces(engine::cut_items(CutAlong::kRows, items_of, each), {items * each});
    check_pieces(engine::cut_items(CutAlong::kRows, items_of, each), {items * each, other, 2});
    check_pieces(engine::cut_items(CutAlong::kColumns, items_of, each), {other, items * each});
    const std::vector<int64_t> blocks{each, upto(3), upto(3)};
    const int64_t rows = items * std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
    check_pieces(engine::cut_blocks(items_of, items, blocks), {rows, other});
    const int64_t width = upto(70);
    check_pieces(engine::cut_items(CutAlong::kRows, engine::even_units(width, 8, ranks)),
                 {width, other});
  }
}

TEST_CASE("the MLP's width is cut in units of 8, the last of which may be short") {
  CHECK(engine::even_units(100, 8, 3) == std::vector<Range>{{0, 40}, {40, 72}, {72, 100}});
  CHECK(engine::even_units(128, 64, 3) == std::vector<Range>{{0, 64}, {64, 128}, {128, 128}});
  CHECK(engine::even_units(5, 8, 2) == std::vector<Range>{{0, 5}, {5, 5}});
  CHECK(engine::even_items(0, 2) == std::vector<Range>{{0, 0}, {0, 0}});
  // Vocabulary: fewer words than ranks.
  CHECK(engine::even_items(3, 4) == std::vector<Range>{{0, 1}, {1, 2}, {2, 3}, {3, 3}});
}

TEST_CASE("a rank's query rows, output columns and KV rows are those of its heads") {
  // Query heads, KV heads, ranks: uneven ones, KV heads fewer than ranks, ranks without a head.
  const std::vector<std::array<int64_t, 3>> cases = {{8, 2, 2},  {8, 4, 3}, {12, 4, 3}, {8, 2, 4},
                                                     {14, 2, 5}, {7, 1, 3}, {3, 3, 4},  {6, 2, 8},
                                                     {16, 8, 4}, {5, 5, 1}};
  for (const auto& [heads, kv_heads, ranks] : cases) {
    INFO(heads << " and " << kv_heads << " heads over " << ranks);
    constexpr int64_t kDim = 3, kHidden = 5;
    const sp::HeadSplit split = sp::split_heads({heads, kv_heads, kDim}, ranks);
    const TensorCut q = engine::cut_items(CutAlong::kRows, split.query_heads_of, kDim);
    const TensorCut o = engine::cut_items(CutAlong::kColumns, split.query_heads_of, kDim);
    const TensorCut gated = engine::cut_items(CutAlong::kRows, split.query_heads_of, 2 * kDim);
    check_pieces(q, {heads * kDim, kHidden});
    check_pieces(o, {kHidden, heads * kDim});
    check_pieces(gated, {heads * 2 * kDim, kHidden});
    check_pieces(engine::cut_items(CutAlong::kRows, split.query_heads_of), {heads});  // sinks
    const TensorCut kv = engine::cut_items(CutAlong::kRows, split.kv_heads_of, kDim);
    if (split.kv_heads_shared) {
      CHECK_THROWS_WITH(engine::check_cut(kv, {kv_heads * kDim, kHidden}),
                        Catch::Contains("two parts"));
    } else {
      check_pieces(kv, {kv_heads * kDim, kHidden});
    }
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const bool has_none = rank >= heads;
      CHECK(q.of_part[rank].empty() == has_none);
      CHECK(engine::piece_shape(o, {kHidden, heads * kDim}, rank)[1] ==
            split.query_heads_of[rank].size() * kDim);
      CHECK(engine::runs_of_piece(o, {kHidden, heads * kDim}, rank).empty() == has_none);
      CHECK(q.of_part[rank] == o.of_part[rank]);
    }
  }
}

TEST_CASE("products over the parts add up to the product with the whole matrices") {
  std::mt19937 random(3);
  const auto matrix = [&](int64_t rows, int64_t columns) {
    std::vector<int64_t> values(rows * columns);
    for (int64_t& value : values) {
      value = static_cast<int64_t>(random() % 19) - 9;
    }
    return values;
  };
  const auto times = [](const std::vector<int64_t>& m, const std::vector<int64_t>& x) {
    std::vector<int64_t> y(x.empty() ? 0 : m.size() / x.size(), 0);
    for (std::size_t i = 0; i < m.size(); ++i) {
      y[i / x.size()] += m[i] * x[i % x.size()];
    }
    return y;
  };
  const auto piece = [](const std::vector<int64_t>& m, const TensorCut& cut, const Shape& shape,
                        int64_t part) {
    std::vector<int64_t> values;
    for (const engine::ElementRun& run : engine::runs_of_piece(cut, shape, part)) {
      values.insert(values.end(), m.begin() + run.in_parameter,
                    m.begin() + run.in_parameter + run.size);
    }
    return values;
  };
  const auto squared = [](std::vector<int64_t> x) {  // in place of an activation
    for (int64_t& value : x) {
      value *= value;
    }
    return x;
  };
  constexpr int64_t kHidden = 6, kWidth = 44;
  const std::vector<int64_t> x = matrix(kHidden, 1), up = matrix(kWidth, kHidden),
                             down = matrix(kHidden, kWidth);
  const std::vector<int64_t> whole = times(down, squared(times(up, x)));
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    const auto units = engine::even_units(kWidth, 8, ranks);
    std::vector<int64_t> sum(kHidden, 0);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto own_up =
          piece(up, engine::cut_items(CutAlong::kRows, units), {kWidth, kHidden}, rank);
      const auto own_down =
          piece(down, engine::cut_items(CutAlong::kColumns, units), {kHidden, kWidth}, rank);
      const std::vector<int64_t> part = times(own_down, squared(times(own_up, x)));
      for (std::size_t i = 0; i < part.size(); ++i) {
        sum[i] += part[i];
      }
    }
    CHECK(sum == whole);
  }
}

TEST_CASE("a delta net's projections are cut by key-head groups, in both orders of their rows") {
  // 5 groups of one key head with 3 dims and two value heads with 2 dims.
  constexpr int64_t kGroups = 5, kKey = 3, kValues = 2 * 2, kHidden = 4;
  for (const int64_t ranks : {2, 3, 7}) {
    const auto groups = engine::even_items(kGroups, ranks);
    // q | k | v: three ranges on each rank that has a group.
    const TensorCut flat = engine::cut_blocks(groups, kGroups, std::vector{kKey, kKey, kValues});
    check_pieces(flat, {kGroups * (2 * kKey + kValues), kHidden});
    // The convolution has one row of taps for each channel.
    check_pieces(flat, {kGroups * (2 * kKey + kValues), 1, 4});
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Range own = groups[rank];
      const std::vector<Range> expected = {
          {own.begin * kKey, own.end * kKey},
          {(kGroups + own.begin) * kKey, (kGroups + own.end) * kKey},
          {2 * kGroups * kKey + own.begin * kValues, 2 * kGroups * kKey + own.end * kValues}};
      CHECK(flat.of_part[rank] == (own.empty() ? std::vector<Range>{} : expected));
    }
    // Group after group: one range.
    const TensorCut grouped = engine::cut_items(CutAlong::kRows, groups, 2 * kKey + 2 * kValues);
    check_pieces(grouped, {kGroups * (2 * kKey + 2 * kValues), kHidden});
    check_pieces(engine::cut_items(CutAlong::kColumns, groups, kValues),
                 {kHidden, kGroups * kValues});
  }
  // A rank alone has all blocks as one range.
  CHECK(engine::cut_blocks(engine::even_items(2, 1), 2, std::vector<int64_t>{1, 3}).of_part ==
        std::vector<std::vector<Range>>{{{0, 8}}});
}

TEST_CASE("a cut that loses or doubles an element is refused by the place") {
  const auto refused = [](const TensorCut& cut, const Shape& shape, const char* what) {
    CHECK_THROWS_WITH(engine::check_cut(cut, shape), Catch::Contains(what));
    CHECK_THROWS_AS(engine::check_cut(cut, shape), std::invalid_argument);
  };
  refused({CutAlong::kRows, {{{0, 2}}, {{3, 5}}}}, {5, 2}, "row 2 is in no part");
  refused({CutAlong::kRows, {{{0, 3}}, {{2, 5}}}}, {5, 2}, "row 2 is in two parts");
  refused({CutAlong::kRows, {{{0, 2}}, {{2, 4}}}}, {5, 2}, "row 4 is in no part");
  refused({CutAlong::kRows, {{{1, 5}}}}, {5, 2}, "row 0 is in no part");
  refused({CutAlong::kRows, {{{0, 6}}}}, {5, 2}, "row 0 to 6 of a parameter with 5");
  refused({CutAlong::kColumns, {{{0, 1}}, {{2, 3}}}}, {5, 3}, "column 1 is in no part");
  refused({CutAlong::kRows, {}}, {5, 3}, "row 0 is in no part");
  refused({CutAlong::kRows, {{{0, 1}}}}, {}, "without dims");
  const TensorCut columns{CutAlong::kColumns, {{{0, 4}}}};
  CHECK_THROWS_WITH(engine::piece_shape(columns, {2, 2, 2}, 0), Catch::Contains("expected 2"));
  CHECK_THROWS_AS(engine::piece_shape(columns, {2, 4}, 1), std::out_of_range);
  CHECK_THROWS_AS(engine::even_items(3, 0), std::invalid_argument);
  CHECK_THROWS_AS(engine::even_items(-1, 2), std::invalid_argument);
  CHECK_THROWS_AS(engine::even_units(3, 0, 2), std::invalid_argument);
  CHECK_THROWS_AS(engine::cut_items(CutAlong::kRows, engine::even_items(3, 2), 0),
                  std::invalid_argument);
}

}  // namespace
