// Guards: stages cut by the number of layers where their work differs, a head that is not counted
// or counted for all tokens, stages without a part of the model, and tied embeddings counted twice
// on a rank that has them once.
#include "sp/plan/stage_balance.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <random>
#include <stdexcept>
#include <tuple>

using namespace ringside::sp;

namespace {

using Score = std::tuple<int64_t, int64_t, int64_t>;  // most work, most bytes, squares

// Nothing wrong with `layers` as stages: consecutive, all layers, none empty but at the ends.
bool is_cut(const ModelParts& parts, const std::vector<Range>& layers) {
  int64_t next = 0;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    const bool end = s == 0 || s + 1 == layers.size();
    if (layers[s].begin != next || layers[s].end < next || (layers[s].empty() && !end)) {
      return false;
    }
    next = layers[s].end;
  }
  return next == static_cast<int64_t>(parts.layers.size());
}

Score score_of(const ModelParts& parts, const std::vector<Range>& layers) {
  int64_t most_work = 0, most_bytes = 0, squares = 0;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    int64_t work = 0, bytes = 0;
    for (int64_t l = layers[s].begin; l < layers[s].end; ++l) {
      work += parts.layers[l].work;
      bytes += parts.layers[l].bytes;
    }
    if (s == 0) {
      work += parts.embedding.work;
      bytes += parts.embedding.bytes;
    }
    if (s + 1 == layers.size()) {
      work += parts.head.work;
      bytes += parts.head.bytes;
    }
    most_work = std::max(most_work, work);
    most_bytes = std::max(most_bytes, bytes);
    squares += work * work;
  }
  return {most_work, most_bytes, squares};
}

// The best score over every way to cut the layers.
Score best_score(const ModelParts& parts, int64_t stages) {
  Score best{INT64_MAX, 0, 0};
  std::vector<Range> layers;
  const auto total = static_cast<int64_t>(parts.layers.size());
  const std::function<void(int64_t)> cut = [&](int64_t begin) {
    const bool last = static_cast<int64_t>(layers.size()) + 1 == stages;
    for (int64_t end = last ? total : begin; end <= total; ++end) {
      layers.push_back({begin, end});
      if (!last) {
        cut(end);
      } else if (is_cut(parts, layers)) {
        best = std::min(best, score_of(parts, layers));
      }
      layers.pop_back();
    }
  };
  cut(0);
  return best;
}

TEST_CASE("stages have the least most work, then bytes, then squares of all cuts there are") {
  std::mt19937 random(7);
  const auto part = [&](int64_t most) {
    return PartCost{static_cast<int64_t>(random() % (most + 1)),
                    static_cast<int64_t>(random() % 5)};
  };
  for (int trial = 0; trial < 200; ++trial) {
    ModelParts parts;
    const std::size_t layers = random() % 8;
    // Few different costs, so that many cuts have the same most work.
    const int64_t most = trial % 2 == 0 ? 3 : 20;
    for (std::size_t l = 0; l < layers; ++l) {
      parts.layers.push_back(part(most));
    }
    parts.embedding = part(2);
    parts.head = part(3 * most);
    for (int64_t stages = 1; stages <= std::min<int64_t>(5, layers + 2); ++stages) {
      const StageBalance balance = balance_stages(parts, stages);
      INFO("trial " << trial << ", " << layers << " layers, " << stages << " stages");
      REQUIRE(static_cast<int64_t>(balance.layers.size()) == stages);
      REQUIRE(is_cut(parts, balance.layers));
      CHECK(score_of(parts, balance.layers) == best_score(parts, stages));
      CHECK(balance.most_work == std::get<0>(best_score(parts, stages)));
    }
  }
}

TEST_CASE("the head counts by its entries") {
  // Width 4096, 8 KV heads of 128, MLP 12288: 193 M parameters a layer; 152k words: 622 M.
  ModelParts parts;
  parts.layers.assign(36, {193, 193});
  parts.embedding = {0, 622};
  parts.head = {622, 622};
  // An entry for each token: as much as 3.2 layers.
  CHECK(balance_stages(parts, 4).layers ==
        std::vector<Range>{{0, 10}, {10, 20}, {20, 30}, {30, 36}});
  // One token of two is an entry. Two stages have 10 layers, those without an end of the model: its
  // matrices are memory.
  parts.head.work /= 2;
  CHECK(balance_stages(parts, 4).layers == std::vector<Range>{{0, 8}, {8, 18}, {18, 28}, {28, 36}});
  parts.head.work = 0;
  CHECK(balance_stages(parts, 4).layers == std::vector<Range>{{0, 9}, {9, 18}, {18, 27}, {27, 36}});
}

TEST_CASE("an end of the model may be a stage alone") {
  ModelParts parts;
  parts.layers.assign(2, {1, 1});
  parts.head = {50, 1};
  CHECK(balance_stages(parts, 2).layers == std::vector<Range>{{0, 2}, {2, 2}});
  CHECK(balance_stages(parts, 4).layers == std::vector<Range>{{0, 0}, {0, 1}, {1, 2}, {2, 2}});
  CHECK_THROWS_WITH(balance_stages(parts, 5), Catch::Contains("make 1 to 4 stages, got 5"));
  CHECK_THROWS_AS(balance_stages(parts, 0), std::invalid_argument);
  parts.layers[1].bytes = -1;
  CHECK_THROWS_WITH(balance_stages(parts, 2), Catch::Contains("must not be negative"));
  parts.layers[1] = {int64_t{1} << 62, 0};
  CHECK_THROWS_WITH(balance_stages(parts, 2), Catch::Contains("use a larger unit"));
}

TEST_CASE("a tied embedding is on a rank once, and on two ranks twice") {
  ModelParts parts;
  parts.layers.assign(4, {1, 10});
  parts.embedding = {0, 100};
  parts.head = {1, 100};
  parts.tied = true;
  const std::vector<Range> layers = {{0, 1}, {1, 2}, {2, 3}, {3, 4}};
  const PipelineShape loop{2, 2}, vee{2, 2, StageOrder::kVee};
  CHECK(bytes_of_ranks(parts, layers, loop) == std::vector<int64_t>{120, 120});
  CHECK(bytes_of_ranks(parts, layers, vee) == std::vector<int64_t>{120, 20});
  CHECK(bytes_of_ranks(parts, {{0, 4}}, {1, 1}) == std::vector<int64_t>{140});
  parts.tied = false;
  CHECK(bytes_of_ranks(parts, layers, loop) == std::vector<int64_t>{120, 120});
  CHECK(bytes_of_ranks(parts, layers, vee) == std::vector<int64_t>{220, 20});
  CHECK_THROWS_AS(bytes_of_ranks(parts, layers, {2, 1}), std::invalid_argument);
}

}  // namespace
