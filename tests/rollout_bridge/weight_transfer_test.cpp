// Guards the order of versions and transports in a worker's transfer of weights: a version is
// finished before the next is started, and a transport that gives up does not lose what it fetched.
#include "rollout_bridge/worker/weight_transfer.h"

#include <catch2/catch.hpp>

#include "tests/rollout_bridge/driver.h"

using namespace ringside::bridge;
using namespace ringside::bridge::test;

namespace {

// Serves the tensors of one snapshot out of memory, up to a number of chunks.
class MemoryFetcher final : public WeightFetcher {
 public:
  bool reaches = true;
  int chunks = 1 << 20;  // served before it is unusable
  Reason error{};
  bool fails = false;
  std::map<int64_t, std::shared_ptr<const WeightSnapshot>> held;
  int begun = 0, fetched = 0, closed = 0;

  bool begin(const WeightSession&, const OfferBody&, const Manifest&) override {
    begun += reaches;
    return reaches;
  }
  bool prefers_changes() const override { return true; }
  Result<FetchState> fetch(WeightReceiver& receiver,
                           WeightReceiver::Clock::time_point now) override {
    if (fails) {
      return Error{Reason::kGone, "gone"};
    }
    for (const ChunkBody& chunk : receiver.requests(now)) {
      if (chunks-- <= 0) {
        receiver.unsent(chunk);
        return FetchState::kUnusable;
      }
      ++fetched;
      const auto tensor = held.at(chunk.version)->tensors.at(chunk.tensor).bytes;
      if (Status s = receiver.accept(chunk, tensor.subspan(chunk.offset, chunk.bytes)); !s) {
        return s.error();
      }
    }
    return FetchState::kMoved;
  }
  const char* encoding(bool) const override { return "memory"; }
  void close() override { ++closed; }
};

struct Transfers {
  std::shared_ptr<MemoryFetcher> first = std::make_shared<MemoryFetcher>();
  std::shared_ptr<MemoryFetcher> second = std::make_shared<MemoryFetcher>();
  WeightTransfer transfer{{.chunk_bytes = 64, .window = 2}, {first, second}};

  Transfers() { transfer.join({{}, "", 1 << 20}); }
  std::shared_ptr<const WeightSnapshot> offer(int64_t version) {
    auto snapshot = make_snapshot("run", 1, version, make_tensors(version));
    first->held[version] = second->held[version] = snapshot;
    transfer.offer({{}, snapshot->manifest, {}});
    return snapshot;
  }
  // Advances until nothing is left to do at once.
  void run() {
    for (int i = 0; i < 10000; ++i) {
      if (!transfer.advance({})) {
        return;
      }
    }
    FAIL("the transfer does not end");
  }
  // "staged 3 memory", "failed 3 gone", "" for none.
  std::string outcome() {
    const auto next = transfer.next_outcome();
    if (!next) {
      return "";
    }
    if (const auto* staged = std::get_if<StagedBody>(&*next)) {
      return "staged " + std::to_string(staged->version) + " " + staged->encoding;
    }
    const auto& failed = std::get<StageFailedBody>(*next);
    return "failed " + std::to_string(failed.version) + " " + failed.detail;
  }
};

}  // namespace

TEST_CASE("a version is fetched by the first transport that reaches it", "[transfer]") {
  Transfers t;
  t.first->reaches = GENERATE(true, false);
  const auto offered = t.offer(3);
  t.run();
  CHECK(t.outcome() == "staged 3 memory");
  CHECK(t.outcome() == "");
  CHECK(t.first->begun + t.second->begun == 1);
  CHECK((t.first->reaches ? t.first : t.second)->fetched > 0);
  CHECK(t.transfer.commit(3, "another root") == nullptr);
  CHECK(t.transfer.commit(2, offered->manifest.root_hash) == nullptr);
  const auto ready = t.transfer.commit(3, offered->manifest.root_hash);
  REQUIRE(ready != nullptr);
  CHECK(root_hash_of(named(*ready)) == offered->manifest.root_hash);
  CHECK(t.transfer.commit(3, offered->manifest.root_hash) == nullptr);
}

TEST_CASE("the next transport fetches what the one before left", "[transfer]") {
  Transfers whole;
  (void)whole.offer(1);
  whole.run();
  const int all = whole.first->fetched;
  REQUIRE(all > 2);
  Transfers t;
  t.first->chunks = 2;
  (void)t.offer(1);
  t.run();
  CHECK(t.outcome() == "staged 1 memory");
  CHECK(t.first->fetched == 2);
  CHECK(t.second->fetched == all - 2);
}

TEST_CASE("a version that no transport can fetch fails, and the next offer is fetched",
          "[transfer]") {
  Transfers t;
  SECTION("none reaches it") {
    t.first->reaches = t.second->reaches = false;
    (void)t.offer(1);
    CHECK(t.outcome() == "failed 1 no transport reaches the bytes");
  }
  SECTION("the last one gives up") {
    t.first->chunks = t.second->chunks = 1;
    (void)t.offer(1);
    t.run();
    CHECK(t.outcome() == "failed 1 no transport can fetch the rest");
  }
  SECTION("the trainer no longer serves it") {
    t.first->fails = true;
    (void)t.offer(1);
    t.run();
    CHECK(t.outcome() == "failed 1 gone");
  }
  CHECK_FALSE(t.transfer.is_busy());
  t.first->reaches = true;
  t.first->fails = false;
  t.first->chunks = 1 << 20;
  (void)t.offer(2);
  t.run();
  CHECK(t.outcome() == "staged 2 memory");
}

TEST_CASE("a version under way is finished and committed before the next offer is started",
          "[transfer]") {
  Transfers t;
  const auto first = t.offer(1);
  CHECK(t.transfer.advance({}));
  (void)t.offer(2);
  const auto third = t.offer(3);  // replaces version 2, which was not started
  t.run();
  CHECK(t.outcome() == "staged 1 memory");
  t.run();
  CHECK(t.outcome() == "");  // version 1 waits for its commit
  CHECK(t.transfer.commit(1, first->manifest.root_hash) != nullptr);
  t.run();
  CHECK(t.outcome() == "staged 3 memory");
  CHECK(t.transfer.commit(3, third->manifest.root_hash) != nullptr);
}

TEST_CASE("the end of a session drops what is under way and what waits", "[transfer]") {
  Transfers t;
  const auto offered = t.offer(1);
  SECTION("being fetched") { CHECK(t.transfer.advance({})); }
  SECTION("fetched") { t.run(); }
  t.transfer.leave();
  CHECK(t.first->closed == 1);
  CHECK(t.second->closed == 1);
  CHECK_FALSE(t.transfer.is_busy());
  CHECK_FALSE(t.transfer.advance({}));
  CHECK(t.outcome() == "");
  CHECK(t.transfer.commit(1, offered->manifest.root_hash) == nullptr);
}
