// Guards the staleness rule under delays, over real sockets: whatever order weights and rollouts
// come in, nothing older than allowed is trained on, and every rollout that was acknowledged is
// accounted for by a counter and by the journal's file.
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "tests/rl/intake_driver.h"

using namespace ringside;
using namespace ringside::test;
using std::chrono::milliseconds;

namespace {

// Rollout records in the journal's file, counted by its published form.
std::size_t rollout_records(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::size_t count = 0;
  for (std::size_t at = 8; at + 16 <= bytes.size();) {
    uint32_t head[2];
    std::memcpy(head, bytes.data() + at, sizeof head);
    count += head[1] == 2 ? 1 : 0;
    at += 16 + head[0];
  }
  return count;
}

// A worker whose weights arrive late: it goes on under the old ones for a while, and some samples
// come out half old.
class LateWorker {
 public:
  LateWorker(const std::string& address, const std::string& id, uint32_t seed)
      : id_(id),
        rng_(seed),
        endpoint_([&] {
          auto options = worker_options(address, id);
          options.capacity_samples = 6;
          return options;
        }()),
        thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            round();
          }
        }) {}
  ~LateWorker() {
    thread_.request_stop();
    thread_.join();
  }

 private:
  void round() {
    if (const auto event = endpoint_.poll(milliseconds(2))) {
      if (const auto* ready = std::get_if<bridge::WeightsReady>(&*event)) {
        waiting_ = ready->snapshot;
      }
      if (const auto* granted = std::get_if<bridge::Granted>(&*event)) {
        work_.insert(work_.end(), granted->groups.begin(), granted->groups.end());
      }
      return;
    }
    if (waiting_ && (version_ < 0 || rng_() % 4 == 0)) {
      version_ = waiting_->manifest.version;
      (void)endpoint_.commit_weights(version_, root_hash_of(named(*waiting_)));
      waiting_.reset();
    }
    if (work_.empty()) {
      return;
    }
    const bridge::Grant group = work_.front();
    work_.pop_front();
    for (const int32_t sample : group.sample_indices) {
      auto r = make_rollout(group.group_id, sample, group.group_size, ++sent_ * 3);
      const auto length = static_cast<int64_t>(r.completion_ids.size());
      r.rollout_id =
          id_ + "/" + std::to_string(sent_) + "/" + r.rollout_id + "/" + std::to_string(version_);
      r.versions = {{version_, 0, length}};
      if (length > 1 && last_ >= 0 && last_ != version_ && rng_() % 2 == 0) {
        r.versions = {{last_, 0, 1}, {version_, 1, length}};
      }
      r.trainer_term = -1;
      r.attempt = group.attempt;
      r.rewards = {{"reward", static_cast<double>(sample)}};
      (void)endpoint_.send_rollout(r, kPatience);
    }
    last_ = version_;
  }

  std::string id_;
  std::mt19937 rng_;
  uint32_t sent_ = 0;
  int64_t version_ = -1;
  int64_t last_ = -1;
  std::shared_ptr<const bridge::WeightSnapshot> waiting_;
  std::deque<bridge::Grant> work_;
  bridge::WorkerEndpoint endpoint_;
  std::jthread thread_;
};

}  // namespace

TEST_CASE(
    "with weights that come late nothing older than allowed is trained on, and the books balance",
    "[stale]") {
  constexpr int64_t kSteps = 12;
  for (const int64_t max_staleness : {0, 1, 4}) {
    const TempDir dir;
    std::mt19937 rng(static_cast<uint32_t>(max_staleness) + 1);
    rl::RolloutIntake intake(options_of(dir, 1), make_rules(3, max_staleness), kSteps);
    std::vector<std::unique_ptr<LateWorker>> workers;
    for (uint32_t i = 0; i < 3; ++i) {
      workers.push_back(std::make_unique<LateWorker>(intake.endpoint().rollout_address(),
                                                     "late" + std::to_string(i), i));
    }
    publish(intake, 1, 0);
    std::size_t consumed = 0;
    int64_t oldest = 0;
    for (int64_t step = 1; step <= kSteps; ++step) {
      const auto rollouts = take_step(intake, step, kPatience);
      INFO("staleness " << max_staleness << ", step " << step);
      REQUIRE(rollouts.has_value());
      REQUIRE(rollouts->size() == 6);
      consumed += rollouts->size();
      for (const bridge::Rollout& r : *rollouts) {
        for (const bridge::VersionSpan& span : r.versions) {
          REQUIRE(span.version <= step - 1);
          REQUIRE(step - 1 - span.version <= max_staleness);
          oldest = std::max(oldest, step - 1 - span.version);
        }
      }
      std::this_thread::sleep_for(milliseconds(rng() % 40));  // training, or a slow encoder
      publish(intake, 1, step);
    }
    workers.clear();
    (void)take_step(intake, kSteps + 1, milliseconds(300));  // takes in what came late
    const rl::SourceCounters c = intake.counters();
    REQUIRE(c.bridge.has_value());
    CHECK(c.accepted == static_cast<int64_t>(consumed) + c.dropped_zero_variance +
                            c.dropped_unneeded + static_cast<int64_t>(c.bridge->forgotten) +
                            c.waiting);
    // What was acknowledged is what the ledger took, and what the journal's file holds.
    CHECK(c.bridge->accepted == static_cast<uint64_t>(c.accepted));
    CHECK(c.bridge->queued_bytes == 0);
    CHECK(rollout_records(dir.path() / "journal" / "journal.bin") == c.bridge->accepted);
    if (max_staleness > 0) {
      CHECK(oldest > 0);
    }
  }
}
