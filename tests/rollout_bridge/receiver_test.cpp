// Guards against torn weights: nothing leaves the receiver before every tensor's hash was right, in
// whatever order, with whatever losses and damage the chunks come.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "rollout_bridge/weights/nontemporal_copy.h"
#include "rollout_bridge/weights/snapshot.h"
#include "rollout_bridge/weights/weight_receiver.h"
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
      if (rng() % 4 == 0) {
        continue;  // lost
      }
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
        if (c.tensor == 0 && seen++ < damaged_rounds) {
          bytes[7] ^= std::byte{1};
        }
        if (!receiver.accept(c, bytes).ok()) {
          failed = true;
        }
      }
    }
    CHECK(receiver.mismatches() == static_cast<uint64_t>(damaged_rounds));
    CHECK(failed == (damaged_rounds == 3));
    if (failed) {
      CHECK_THROWS_AS(receiver.take(), std::logic_error);
    }
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
  for (const ChunkBody& c : asked) {
    REQUIRE(receiver.accept(c, chunk_of(*source, c)).ok());
  }
  CHECK(receiver.complete());
  CHECK(receiver.mismatches() == 0);
}

// Chunks in the order of their offsets are hashed as they come, others when the tensor is whole.
TEST_CASE("a tensor is verified whatever order its chunks come in", "[receiver]") {
  const auto source = make_snapshot("run", 1, 2, test::make_tensors(1, 100000));
  for (const bool damaged : {false, true}) {
    for (const int order : {0, 1, 2}) {  // as asked, backwards, first last
      WeightReceiver receiver(source->manifest,
                              {.chunk_bytes = 70000, .window = 100, .max_tries = 1});
      std::vector<ChunkBody> asked = receiver.requests(Time{});
      REQUIRE(asked.size() > 3);
      if (order == 1) {
        std::reverse(asked.begin(), asked.end());
      }
      if (order == 2) {
        std::rotate(asked.begin(), asked.begin() + 1, asked.end());
      }
      bool ok = true;
      for (std::size_t i = 0; i < asked.size(); ++i) {
        const Frame good = chunk_of(*source, asked[i]);
        std::vector<std::byte> bytes(good.begin(), good.end());
        if (damaged && i == 1) {
          bytes.back() ^= std::byte{1};
        }
        ok = receiver.accept(asked[i], bytes).ok() && ok;
      }
      CAPTURE(damaged, order);
      CHECK(ok == !damaged);
      CHECK(receiver.complete() == !damaged);
      if (!damaged) {
        CHECK(root_hash_of(test::named(*receiver.take())) == source->manifest.root_hash);
      }
    }
  }
}

TEST_CASE("a copy past the caches writes its bytes and no others", "[receiver]") {
  std::mt19937 rng(11);
  std::vector<std::byte> from(2000), to(2100);
  for (std::byte& b : from) {
    b = static_cast<std::byte>(rng());
  }
  for (const std::size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 1000, 1999}) {
    for (std::size_t shift = 0; shift < 70; shift += 3) {
      std::fill(to.begin(), to.end(), std::byte{0x5A});
      std::vector<std::byte> expected = to;
      const std::size_t read = shift % 2;
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(read), bytes,
                  expected.begin() + static_cast<std::ptrdiff_t>(shift));
      stream_copy(std::span(to).subspan(shift, bytes), std::span(from).subspan(read, bytes));
      CAPTURE(bytes, shift);
      REQUIRE(to == expected);
    }
  }
}

TEST_CASE("large chunks end in the published bytes too", "[receiver]") {
  std::mt19937 rng(12);
  std::vector<uint8_t> bytes(3 * kStreamBytes + 12345);
  for (uint8_t& b : bytes) {
    b = static_cast<uint8_t>(rng());
  }
  const auto count = static_cast<int64_t>(bytes.size());
  const auto source =
      make_snapshot("run", 1, 2, {{"w", "U8", {count}, Buffer::own(std::move(bytes))}});
  WeightReceiver receiver(source->manifest, {.chunk_bytes = kStreamBytes + 1000, .window = 8});
  for (const ChunkBody& chunk : receiver.requests({})) {
    REQUIRE(receiver.accept(chunk, chunk_of(*source, chunk)).ok());
  }
  CHECK(receiver.mismatches() == 0);
  CHECK(root_hash_of({{"w", "U8", {count}, receiver.take()->tensors[0]}}) ==
        source->manifest.root_hash);
}

TEST_CASE("a version lies in the memory of the one that nobody holds any more", "[receiver]") {
  WeightMemory memory;
  std::vector<std::shared_ptr<const WeightSnapshot>> held;
  const auto stage = [&](int64_t version) {
    const auto source =
        make_snapshot("run", 1, version, test::make_tensors(static_cast<uint32_t>(version), 3000));
    WeightReceiver receiver(source->manifest, small_chunks(), nullptr, memory);
    while (!receiver.complete()) {
      for (const ChunkBody& c : receiver.requests(Time{})) {
        REQUIRE(receiver.accept(c, chunk_of(*source, c)).ok());
      }
    }
    held.push_back(receiver.take());
    CHECK(root_hash_of(test::named(*held.back())) == source->manifest.root_hash);
  };
  stage(1);
  stage(2);
  CHECK(memory.kept() == 0);
  const std::string root = held[1]->manifest.root_hash;
  const auto* first = held[0]->tensors[0].bytes.data();
  held.erase(held.begin());
  CHECK(memory.kept() > 0);
  stage(3);
  CHECK(memory.kept() == 0);
  CHECK(held[1]->tensors[0].bytes.data() == first);
  CHECK(root_hash_of(test::named(*held[0])) == root);  // version 2 was not written over
}

TEST_CASE("memory is kept up to its limit and survives its handle", "[receiver]") {
  std::shared_ptr<std::byte[]> late;
  {
    WeightMemory memory;
    memory.keep(WeightMemory::capacity(1000) + WeightMemory::capacity(5 << 20));
    auto small = memory.take(1000), huge = memory.take(5 << 20), more = memory.take(1000);
    late = memory.take(100);
    small.reset();
    huge.reset();
    more.reset();  // above the limit: freed
    CHECK(memory.kept() == WeightMemory::capacity(1000) + WeightMemory::capacity(5 << 20));
    memory.keep(WeightMemory::capacity(1000));
    CHECK(memory.kept() == WeightMemory::capacity(1000));
    const WeightMemory copy = memory;
    CHECK(copy.kept() == memory.kept());
  }
  late[99] = std::byte{1};
}

}  // namespace
}  // namespace ringside::bridge
