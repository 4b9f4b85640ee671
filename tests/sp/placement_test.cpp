// Guards: a placement that leaves tokens or attended pairs unbalanced, or sends more keys and
// values than it must.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <random>

#include "sp/plan/attention_plan.h"

using namespace ringside::sp;

namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// 64 prompts of 64 tokens with completions log-normal (6, 1) clipped to 16..4096: the long tail of
// real rollouts.
std::vector<int64_t> long_tail(unsigned seed) {
  std::mt19937 rng(seed);
  std::lognormal_distribution<double> completion(6.0, 1.0);
  std::vector<int64_t> lengths(64);
  for (int64_t& n : lengths) {
    n = 64 + static_cast<int64_t>(std::clamp(completion(rng), 16.0, 4096.0));
  }
  return lengths;
}

// KV elements that all ranks of a p2p ring send forward.
int64_t kv_sent(const SequenceLayout& layout, bool prune) {
  int64_t sum = 0;
  for (int64_t r = 0; r < layout.ring_size(); ++r) {
    sum += plan_attention(layout, {4, 2, 8}, r, {RingImpl::kP2p, 0, 0, prune}).traffic.ring_kv;
  }
  return sum;
}

}  // namespace

TEST_CASE("on long-tailed lengths tokens and pairs are balanced and few bytes are sent") {
  for (const int64_t ring : {2, 4, 8}) {
    std::vector<double> tokens, pairs, of_plain, of_pruned;
    for (unsigned seed = 0; seed < 20; ++seed) {
      const auto forest = SegmentForest::of_documents(long_tail(seed));
      const SequenceLayout aware(forest, ring, 1, Placement::kDocumentAware);
      const SequenceLayout zigzag(forest, ring, 1, Placement::kZigzag);
      tokens.push_back(aware.balance().tokens);
      pairs.push_back(aware.balance().pairs);
      const auto bytes = static_cast<double>(kv_sent(aware, true));
      of_plain.push_back(bytes / static_cast<double>(kv_sent(zigzag, false)));
      of_pruned.push_back(bytes / static_cast<double>(kv_sent(zigzag, true)));
    }
    std::printf(
        "placement, ring %ld: tokens %.3f, pairs %.3f of the mean; KV bytes %.3f of zigzag's (%.3f "
        "of pruned zigzag's)\n",
        static_cast<long>(ring), median(tokens), median(pairs), median(of_plain),
        median(of_pruned));
    CHECK(median(tokens) <= 1.05);
    CHECK(median(pairs) <= 1.05);
    CHECK(median(of_pruned) <= (ring == 8 ? 0.4 : 0.25));
  }
}

TEST_CASE("trees that fit stay whole, and no byte is sent for them") {
  std::vector<Segment> segments;  // 8 groups: a prompt and 16 completions a quarter as long
  for (int64_t group = 0; group < 8; ++group) {
    const auto prompt = static_cast<int64_t>(segments.size());
    segments.push_back({-1, 400});
    segments.insert(segments.end(), 16, {prompt, 100});
  }
  const SequenceLayout layout(SegmentForest(segments), 4, 1, Placement::kDocumentAware);
  CHECK(layout.balance().tokens == 1.0);
  CHECK(layout.balance().pairs == 1.0);
  CHECK(kv_sent(layout, true) == 0);
}

TEST_CASE(
    "a tree too large for a rank is opened: its root is cut, its branches are placed for "
    "themselves") {
  const SequenceLayout layout(SegmentForest({{-1, 80}, {0, 20}, {0, 20}, {0, 20}, {0, 20}}), 2, 1,
                              Placement::kDocumentAware);
  for (int64_t r = 0; r < 2; ++r) {
    const auto& share = layout.ring_share(r);
    CHECK(std::count_if(share.begin(), share.end(),
                        [](const TokenRun& run) { return run.segment == 0; }) == 2 - r);
    CHECK(std::count_if(share.begin(), share.end(), [](const TokenRun& run) {
            return run.offsets == Range{0, 20} && run.segment > 0;
          }) == 2);
  }
  CHECK(layout.balance().pairs < 1.001);
}

TEST_CASE("contiguous placement balances tokens alone") {
  const SequenceLayout layout(SegmentForest::of_documents({100}), 4, 1, Placement::kContiguous);
  CHECK(layout.balance().tokens == 1.0);
  CHECK(layout.balance().pairs > 1.5);
  CHECK(layout.ring_share(1) == std::vector<TokenRun>{{0, {25, 50}}});
}
