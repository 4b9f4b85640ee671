// Guards against torn weights: nothing leaves the receiver before every tensor's hash was right, in
// whatever order, with whatever losses and damage the chunks come.
#include "rollout_bridge/receiver.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "tests/rollout_bridge/samples.h"

namespace ringside::bridge {
namespace {

using Time = WeightReceiver::Clock::time_point;

Frame chunk_of(const WeightSnapshot& s, const ChunkBody& c) {
  return s.tensors[c.tensor].bytes.subspan(c.offset, c.bytes);
}

WeightReceiver::Options small_chunks() { return {.chunk_bytes = 1000, .window = 4}; }

TEST_CASE("shuffled and lost chunks end in the published bytes", "[receiver]") {
  const auto source = make_snapshot("run", 1, 2, test::make_tensors(2));
  WeightReceiver receiver(source->manifest, small_chunks());
  std::mt19937 rng(1);
  Time now{};
  std::size_t most = 0;
  while (!receiver.complete()) {
    std::vector<ChunkBody> asked = receiver.requests(now);
    most = std::max(most, asked.size());
    std::shuffle(asked.begin(), asked.end(), rng);
    for (const ChunkBody& c : asked) {
      if (rng() % 4 == 0) continue;  // lost
      REQUIRE(receiver.accept(c, chunk_of(*source, c)).ok());
      REQUIRE(receiver.accept(c, chunk_of(*source, c)).ok());  // a late copy is ignored
    }
    now += std::chrono::seconds(6);  // what was lost is due again
  }
  CHECK(most <= 4);
  const auto staged = receiver.take();
  REQUIRE(staged->manifest == source->manifest);
  CHECK(root_hash_of(test::named(*staged)) == source->manifest.root_hash);
}

TEST_CASE("a damaged tensor is fetched anew, and given up after max_tries", "[receiver]") {
  const auto source = make_snapshot("run", 1, 2, test::make_tensors(2, 100));
  for (const int damaged_rounds : {1, 3}) {
    WeightReceiver receiver(source->manifest, small_chunks());
    int seen = 0;
    bool failed = false;
    while (!receiver.complete() && !failed) {
      for (const ChunkBody& c : receiver.requests(Time{})) {
        const Frame good = chunk_of(*source, c);
        std::vector<std::byte> bytes(good.begin(), good.end());
        if (c.tensor == 0 && seen++ < damaged_rounds) bytes[7] ^= std::byte{1};
        if (!receiver.accept(c, bytes).ok()) failed = true;
      }
    }
    CHECK(receiver.mismatches() == static_cast<uint64_t>(damaged_rounds));
    CHECK(failed == (damaged_rounds == 3));
    if (failed) CHECK_THROWS_AS(receiver.take(), std::logic_error);
  }
}

TEST_CASE("chunks nobody asked for change nothing", "[receiver]") {
  const auto source = make_snapshot("run", 1, 2, test::make_tensors(2, 100));
  WeightReceiver receiver(source->manifest, small_chunks());
  const std::vector<ChunkBody> asked = receiver.requests(Time{});
  const std::vector<std::byte> bytes(5000);
  CHECK(receiver.accept({2, 99, 0, 10}, Frame(bytes).first(10)).ok());
  CHECK(receiver.accept({2, 0, 12345678, 10}, Frame(bytes).first(10)).ok());
  CHECK(receiver.accept({1, 0, 0, asked[0].bytes}, Frame(bytes).first(asked[0].bytes)).ok());
  CHECK(receiver.accept(asked[0], Frame(bytes).first(asked[0].bytes - 1)).ok());
  for (const ChunkBody& c : asked) REQUIRE(receiver.accept(c, chunk_of(*source, c)).ok());
  CHECK(receiver.complete());
  CHECK(receiver.mismatches() == 0);
}

}  // namespace
}  // namespace ringside::bridge
