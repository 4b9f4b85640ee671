// Guards: states sent for documents that are whole on a rank, rows before a piece taken from
// another document or skipped where a piece is short, and maps composed in another order than that
// of the document. The executor's results and bytes are held to these plans in
// tests/engine/delta_parallel_test.cpp.
#include "sp/plan/state_plan.h"

#include <catch2/catch.hpp>
#include <stdexcept>

using namespace ringside::sp;

namespace {

const StateShape kShape{2, 4, 8, 16, 4};

StatePlan plan_of(const SegmentForest& forest, int64_t ring, int64_t rank,
                  Placement placement = Placement::kContiguous, int64_t ulysses = 1) {
  return plan_state(SequenceLayout(forest, ring, ulysses, placement), kShape, rank);
}

TEST_CASE("documents that are whole on a rank send no states and no rows") {
  const auto forest = SegmentForest::of_documents({40, 40});
  for (int64_t rank = 0; rank < 2; ++rank) {
    const StatePlan plan = plan_of(forest, 2, rank, Placement::kDocumentAware);
    CHECK(plan.traffic == StateTraffic{});
    CHECK_FALSE(plan.maps_travel);
    CHECK_FALSE(plan.rows_travel);
    CHECK(plan.halo == std::vector<int64_t>{-1, -1, -1});
  }
}

TEST_CASE("states go only to ranks that hold a later piece, the first piece's without its map") {
  // 30 tokens on each of 3 ranks: document 0 ends and document 1 begins on rank 1.
  const auto forest = SegmentForest::of_documents({45, 45});
  const StatePlan first = plan_of(forest, 3, 0), second = plan_of(forest, 3, 1),
                  third = plan_of(forest, 3, 2);
  CHECK(first.send_maps[1] == std::vector<TravellingMap>{{0, true}});
  CHECK(first.send_maps[2].empty());
  CHECK(second.send_maps[2] == std::vector<TravellingMap>{{0, true}});
  CHECK(second.mapped_runs == std::vector<int64_t>{1});
  CHECK(second.runs[0].start == 0);
  CHECK(second.runs[1] == StatePlan::Run{{15, 30}, -1, -1});
  CHECK(first.traffic.maps == 4 * 8 * 16);
  CHECK(third.traffic.maps_grad == 4 * 8 * 16);
  CHECK(third.traffic.maps == 0);
}

TEST_CASE("a document on three ranks composes maps in its order") {
  const StatePlan third = plan_of(SegmentForest::of_documents({90}), 3, 2);
  CHECK(third.mapped_runs.empty());
  CHECK(third.recv_maps[0] == std::vector<TravellingMap>{{0, true}});
  CHECK(third.recv_maps[1] == std::vector<TravellingMap>{{0, false}});
  CHECK(third.path == std::vector<StatePlan::PathStep>{{0, -1}, {1, 0}});
  CHECK(third.starts == std::vector<int64_t>{1});
  CHECK(plan_of(SegmentForest::of_documents({9000}), 3, 2).traffic == third.traffic);
}

TEST_CASE("rows before a piece reach over pieces shorter than the convolution") {
  // One token on each of four ranks.
  const StatePlan plan = plan_of(SegmentForest::of_documents({4}), 4, 3);
  CHECK(plan.recv_rows == std::vector<int64_t>{1, 1, 1, 0});
  CHECK(plan.halo == std::vector<int64_t>{1, 2, 3});
  const StatePlan earlier = plan_of(SegmentForest::of_documents({4}), 4, 1);
  CHECK(earlier.halo == std::vector<int64_t>{-1, -1, 1});
  CHECK(earlier.send_rows[3] == std::vector<int64_t>{0});
}

TEST_CASE("children start from their parent's end, past empty segments") {
  const SegmentForest tree({{-1, 10}, {0, 5}, {0, 0}, {2, 4}});
  const StatePlan plan = plan_of(tree, 1, 0);
  CHECK(plan.runs == std::vector<StatePlan::Run>{{{0, 10}}, {{10, 15}, 0}, {{15, 19}, 0}});
  CHECK(plan.halo == std::vector<int64_t>{-1, -1, -1, 7, 8, 9, 7, 8, 9});
}

TEST_CASE("head groups are cut unevenly, and no further than key heads") {
  const SegmentForest forest = SegmentForest::of_documents({9});
  StateShape three = kShape;
  three.key_heads = 3;
  three.value_heads = 6;
  const SequenceLayout layout(forest, 1, 2);
  CHECK(plan_state(layout, three, 0).own_groups() == Range{0, 2});
  CHECK(plan_state(layout, three, 1).own_value_heads() == 2);
  CHECK_THROWS_WITH(plan_of(forest, 1, 0, Placement::kZigzag, 3),
                    Catch::Contains("ulysses size 3 exceeds the 2 key heads"));
  StateShape odd = kShape;
  odd.value_heads = 3;
  CHECK_THROWS_AS(plan_state(layout, odd, 0), std::invalid_argument);
}

}  // namespace
