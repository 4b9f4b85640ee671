// Guards "exactly once": whatever the order of grants, losses, retries and late rollouts, a sample
// is delivered once, a dead worker's samples are asked for again, and nothing consumed comes back.
#include "rollout_bridge/trainer/group_ledger.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "tests/rollout_bridge/samples.h"
#include "tests/support/hand_granted.h"

namespace ringside::bridge {
namespace {

using test::make_rollout;
constexpr int64_t kPlenty = 1000;
constexpr Origin kNow = Origin::kThisStart;
constexpr Origin kBefore = Origin::kEarlierStart;

WorkDivision::Time at(int64_t ms) { return WorkDivision::Time(std::chrono::milliseconds(ms)); }

// A ledger whose groups are granted by hand, and whose consumed groups no journal knows.
struct Consumed {
  IdSet consumed;
};
class HandLedger : private Consumed, public GroupLedger {
 public:
  explicit HandLedger(int32_t max_attempts, IdSet granted_before = {},
                      const test::HandGrants& groups = test::HandGrants(2))
      : GroupLedger({max_attempts, 0, groups.policy()}, consumed, std::move(granted_before)),
        groups_(groups) {}
  void grant(const test::TestGroup& group) {
    groups_.add({group});
    consumed.erase(group.group_id);
    GroupLedger::grant(group.group_id);
  }
  std::vector<int64_t> deliver(const Rollout& rollout) { return GroupLedger::deliver(rollout, {}); }
  void consume(int64_t group_id) {
    consumed.insert(group_id);
    (void)forget(group_id);
  }

 private:
  test::HandGrants groups_;
};

// What one worker gets that is alone.
std::vector<Grant> assign(GroupLedger& ledger, const std::string& worker, int64_t version,
                          int64_t capacity, int64_t room = kPlenty, int64_t ms = 0) {
  const WorkerShare share{worker, version, capacity, true};
  return ledger.work().assign(std::span(&share, 1), room, at(ms))[worker];
}

IdSet ids(std::initializer_list<int64_t> members) {
  IdSet out;
  for (const int64_t id : members) {
    out.insert(id);
  }
  return out;
}

TEST_CASE("groups go out whole, oldest first, to a worker that is fresh enough", "[ledger]") {
  HandLedger ledger(3);
  ledger.grant({0, 4, 5});
  ledger.grant({1, 4, 0});
  ledger.grant({2, 2, 0});
  auto out = assign(ledger, "a", 3, 5);
  REQUIRE(out.size() == 1);
  CHECK(out[0].group_id == 1);  // group 0 wants version 5
  CHECK(out[0].sample_indices == std::vector<int32_t>{0, 1, 2, 3});
  CHECK(assign(ledger, "a", 3, 5).empty());     // two samples do not fit beside them
  CHECK(assign(ledger, "c", 5, 8, 1).empty());  // no room in the queue
  out = assign(ledger, "b", 5, 4);
  REQUIRE(out.size() == 1);
  CHECK(out[0].group_id == 0);
  CHECK(ledger.work().in_flight() == 8);
  CHECK(ledger.work().has_work_for(0));
  CHECK_FALSE(ledger.work().has_work_for(-1));
  out = assign(ledger, "d", 5, 1);  // a group larger than what it can do: a part of it
  REQUIRE(out.size() == 1);
  CHECK(out[0].sample_indices == std::vector<int32_t>{0});
}

TEST_CASE("a lost worker's missing samples are asked for again, delivered ones are not",
          "[ledger]") {
  HandLedger ledger(3);
  ledger.grant({7, 3, 0});
  REQUIRE(assign(ledger, "a", 0, 8).size() == 1);
  CHECK(ledger.deliver(make_rollout(7, 1, 3)).empty());
  CHECK(ledger.work().release("a").groups == 1);
  CHECK(ledger.work().in_flight() == 0);
  const auto out = assign(ledger, "b", 0, 8);
  REQUIRE(out.size() == 1);
  CHECK(out[0].sample_indices == std::vector<int32_t>{0, 2});
  CHECK(ledger.judge(make_rollout(7, 1, 3), "a", kNow).value() == Verdict::kDuplicate);
  CHECK(ledger.judge(make_rollout(7, 1, 3, 99), "b", kNow).value() == Verdict::kDuplicate);
  CHECK(ledger.judge(make_rollout(7, 0, 3), "a", kNow).value() ==
        Verdict::kNew);                                              // late, and first
  CHECK_FALSE(ledger.judge(make_rollout(7, 0, 4), "a", kNow).ok());  // another group size
}

TEST_CASE("failed samples are retried up to the limit, then delivered as they are", "[ledger]") {
  HandLedger ledger(2);
  ledger.grant({1, 1, 0});
  REQUIRE(assign(ledger, "a", 0, 1).size() == 1);
  Rollout failed = make_rollout(1, 0, 1);
  failed.finish_reason = FinishReason::kError;
  REQUIRE(ledger.judge(failed, "a", kNow).value() == Verdict::kRetry);
  ledger.retry(failed, "a", kNow);
  const auto again = assign(ledger, "a", 0, 1);
  REQUIRE(again.size() == 1);
  CHECK(again[0].attempt == 1);
  CHECK(ledger.judge(failed, "a", kNow).value() == Verdict::kNew);
}

// Before the grant a failure is no try of anything: the sample must be asked for, not delivered
// broken.
TEST_CASE("a failed sample of a group that is not granted is dropped, and asked for with the group",
          "[ledger]") {
  HandLedger ledger(1, ids({1}));
  Rollout failed = make_rollout(1, 0, 2);
  failed.finish_reason = FinishReason::kAborted;
  REQUIRE(ledger.judge(failed, "a", kBefore).value() == Verdict::kRetry);
  ledger.retry(failed, "a", kBefore);
  CHECK(ledger.deliver(make_rollout(1, 1, 2)).empty());
  REQUIRE(ledger.judge(failed, "a", kBefore).value() == Verdict::kRetry);
  ledger.retry(failed, "a", kBefore);
  ledger.grant({1, 2, 0});
  const auto out = assign(ledger, "a", 0, 2);
  REQUIRE(out.size() == 1);
  CHECK(out[0].sample_indices == std::vector<int32_t>{0});
  CHECK(out[0].attempt == 0);
}

TEST_CASE("a lower priority number goes out before an older grant", "[ledger]") {
  HandLedger ledger(3);
  ledger.grant({7, 1, 0, 4});
  ledger.grant({8, 1, 0, 4});
  ledger.grant({9, 1, 0, 3});
  const auto out = assign(ledger, "a", 0, 3);
  REQUIRE(out.size() == 3);
  CHECK(out[0].group_id == 9);
  CHECK(out[1].group_id == 7);
  CHECK(out[2].group_id == 8);
}

// A replayed rollout of a step that is over consumes a group that nobody granted.
TEST_CASE("consuming an ungranted group takes no other group out of the queue", "[ledger]") {
  HandLedger ledger(3);
  ledger.grant({10, 1, 0});
  CHECK(ledger.deliver(make_rollout(4, 0, 2)).empty());
  ledger.consume(4);
  const auto out = assign(ledger, "a", 0, 1);
  REQUIRE(out.size() == 1);
  CHECK(out[0].group_id == 10);
}

TEST_CASE("consumed groups stay shut until they are granted anew", "[ledger]") {
  HandLedger ledger(3);
  ledger.grant({4, 1, 0});
  CHECK(ledger.deliver(make_rollout(4, 0, 1)).empty());
  ledger.consume(4);
  CHECK(ledger.judge(make_rollout(4, 0, 1), "a", kNow).value() == Verdict::kDuplicate);
  ledger.grant({4, 1, 0});
  CHECK(assign(ledger, "a", 0, 1).size() == 1);
  CHECK(ledger.judge(make_rollout(4, 0, 1), "a", kNow).value() == Verdict::kNew);
  CHECK_THROWS_AS(ledger.grant({4, 2, 0}), std::invalid_argument);
  CHECK_THROWS_AS(ledger.grant({-1, 2, 0}), std::invalid_argument);
}

TEST_CASE("nobody takes another worker's sample away", "[ledger]") {
  HandLedger ledger(2);
  ledger.grant({5, 2, 0});
  REQUIRE(assign(ledger, "a", 0, 2).size() == 1);
  const auto reason = [&](const Rollout& r, const std::string& worker) {
    const auto verdict = ledger.judge(r, worker, kNow);
    return verdict ? std::nullopt : std::optional(verdict.error().reason);
  };
  CHECK(reason(make_rollout(6, 0, 2), "a") == Reason::kUnknownGroup);
  CHECK(reason(make_rollout(5, 0, 2), "b") == Reason::kNotGranted);
  Rollout failed = make_rollout(5, 0, 2);
  failed.finish_reason = FinishReason::kError;
  failed.attempt = 0;
  CHECK(reason(failed, "b") == Reason::kNotGranted);
  ledger.reopen(5, 0, "b");
  CHECK(ledger.work().in_flight("a") == 2);
  ledger.reopen(5, 0, "a");
  CHECK(ledger.work().in_flight("a") == 1);
  REQUIRE(assign(ledger, "b", 0, 1).size() == 1);
  // "a" was asked once: what it makes late counts, but its failure is no try of "b"'s.
  REQUIRE(ledger.judge(failed, "a", kNow).value() == Verdict::kRetry);
  ledger.retry(failed, "a", kNow);
  CHECK(ledger.work().in_flight("b") == 1);
  CHECK(ledger.judge(make_rollout(5, 0, 2), "a", kNow).value() == Verdict::kNew);
  // Of an earlier start's grants nobody knows.
  CHECK(ledger.judge(make_rollout(5, 0, 2), "c", kBefore).value() == Verdict::kNew);
  const auto never = ledger.judge(make_rollout(6, 0, 2), "c", kBefore);
  REQUIRE_FALSE(never.ok());
  CHECK(never.error().reason == Reason::kUnknownGroup);
  const HandLedger later(2, ids({6}));
  CHECK(later.judge(make_rollout(6, 0, 2), "c", kBefore).value() == Verdict::kNew);
  CHECK_FALSE(later.judge(make_rollout(6, 0, 2), "c", kNow).ok());  // this start did not grant it
}

TEST_CASE("a rollout with a token older than the grant allows is stale", "[ledger]") {
  HandLedger ledger(3);
  ledger.grant({1, 1, 4});
  REQUIRE(assign(ledger, "a", 4, 1).size() == 1);
  Rollout r = make_rollout(1, 0, 1);
  r.versions = {{4, 0, 1}};
  CHECK(ledger.judge(r, "a", kNow).value() == Verdict::kNew);
  r.versions = {{5, 0, 1}, {3, 1, 2}};
  const auto stale = ledger.judge(r, "a", kNow);
  REQUIRE_FALSE(stale.ok());
  CHECK(stale.error().reason == Reason::kStale);
}

TEST_CASE("overdue(t) lists and revokes samples granted before t only", "[ledger]") {
  HandLedger ledger(3);
  for (int64_t g = 0; g < 3; ++g) {
    ledger.grant({g, 2, 0});
  }
  REQUIRE(assign(ledger, "a", 0, 2, kPlenty, 10).size() == 1);
  REQUIRE(assign(ledger, "b", 0, 2, kPlenty, 20).size() == 1);
  REQUIRE(assign(ledger, "a", 0, 4, kPlenty, 30).size() == 1);
  CHECK(ledger.deliver(make_rollout(0, 1, 2)).empty());
  CHECK(ledger.work().held_since(at(10)).empty());
  CHECK(ledger.work().held_since(at(21)) == std::map<std::string, int64_t>{{"a", 1}, {"b", 2}});
  const Holding back = ledger.work().release("a", at(30));
  CHECK(back.groups == 1);
  CHECK(back.samples == 1);
  CHECK(ledger.work().in_flight("a") == 2);
  CHECK(ledger.work().in_flight("b") == 2);
  CHECK(ledger.judge(make_rollout(0, 0, 2), "a", kNow).value() ==
        Verdict::kNew);  // late, and first
}

TEST_CASE("a failure of a worker that was given up is one try, and only one", "[ledger]") {
  HandLedger ledger(3);
  ledger.grant({5, 1, 0});
  REQUIRE(assign(ledger, "a", 0, 1).size() == 1);
  CHECK(ledger.work().release("a").groups == 1);
  Rollout failed = make_rollout(5, 0, 1);
  failed.finish_reason = FinishReason::kError;
  failed.attempt = 0;
  for (int again = 0; again < 2; ++again) {
    REQUIRE(ledger.judge(failed, "a", kNow).value() == Verdict::kRetry);
    ledger.retry(failed, "a", kNow);
  }
  CHECK(assign(ledger, "b", 0, 1).at(0).attempt == 1);
}

// Workers join, die, deliver late and deliver twice at random; at the end every sample has arrived
// exactly once.
TEST_CASE("random histories deliver every sample exactly once", "[ledger]") {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 rng(seed);
    HandLedger ledger(3);
    constexpr int kGroups = 12;
    for (int g = 0; g < kGroups; ++g) {
      ledger.grant({g, 3, 0});
    }
    std::map<std::string, std::set<std::pair<int64_t, int32_t>>> held;
    std::set<std::pair<int64_t, int32_t>> delivered;
    for (int step = 0; delivered.size() < kGroups * 3 && step < 20000; ++step) {
      const std::string worker(1, static_cast<char>('a' + rng() % 4));
      switch (rng() % 5) {
        case 0:
          for (const auto& g : assign(ledger, worker, 0, 6)) {
            for (const int32_t s : g.sample_indices) {
              held[worker].insert({g.group_id, s});
            }
          }
          break;
        case 1:
          if (rng() % 8 == 0) {
            ledger.work().release(worker);  // lost, but it goes on sampling
          }
          break;
        default:
          if (held[worker].empty()) {
            break;
          }
          const auto sample = *held[worker].begin();
          if (rng() % 3 != 0) {
            held[worker].erase(sample);  // otherwise it is sent twice
          }
          const Rollout r = make_rollout(sample.first, sample.second, 3, seed + rng() % 5);
          if (ledger.judge(r, worker, kNow).value() == Verdict::kNew) {
            REQUIRE(delivered.insert(sample).second);
            CHECK(ledger.deliver(r).empty());
          }
      }
    }
    REQUIRE(delivered.size() == kGroups * 3);
    REQUIRE(ledger.work().in_flight() == 0);
  }
}

TEST_CASE("the set of ids agrees with std::set", "[ledger]") {
  std::mt19937 rng(3);
  IdSet ids;
  std::set<int64_t> reference;
  for (int i = 0; i < 20000; ++i) {
    const auto id = static_cast<int64_t>(rng() % 200);
    if (rng() % 64 == 0) {
      const auto end = id + static_cast<int64_t>(rng() % 9);
      ids.insert_range(id, end);
      for (int64_t member = id; member < end; ++member) {
        reference.insert(member);
      }
    } else if (rng() % 2 == 0) {
      ids.insert(id);
      reference.insert(id);
    } else {
      ids.erase(id);
      reference.erase(id);
    }
    const auto probe = static_cast<int64_t>(rng() % 210);
    REQUIRE(ids.contains(probe) == reference.contains(probe));
  }
  std::size_t members = 0;
  for (const auto& [begin, end] : ids.ranges()) {
    members += static_cast<std::size_t>(end - begin);
  }
  CHECK(members == reference.size());
}

}  // namespace
}  // namespace ringside::bridge
