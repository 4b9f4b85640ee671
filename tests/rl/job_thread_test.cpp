// Guards the thread that publishing runs on: order kept, nothing left out, a bound on what waits,
// errors that reach the owner.
#include "rl/publish/job_thread.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <stdexcept>
#include <vector>

namespace ringside::rl {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kPatience{20000};

TEST_CASE("jobs run in order, each of them, on another thread", "[jobs]") {
  std::vector<int> ran;
  std::thread::id where;
  JobThread jobs;
  for (int i = 0; i < 100; ++i) {
    jobs.submit([&, i] {
      ran.push_back(i);
      where = std::this_thread::get_id();
    });
  }
  REQUIRE(jobs.wait_idle(kPatience));
  REQUIRE(ran.size() == 100);
  for (int i = 0; i < 100; ++i) {
    CHECK(ran[static_cast<std::size_t>(i)] == i);
  }
  CHECK(where != std::this_thread::get_id());
}

TEST_CASE("one job waits beside the one under way; whoever gives a third is held up", "[jobs]") {
  std::promise<void> gate;
  const std::shared_future<void> open = gate.get_future().share();
  std::atomic<int> given{0};
  JobThread jobs;
  std::jthread owner([&] {
    for (int i = 0; i < 3; ++i) {
      jobs.submit([open] { open.wait(); });
      ++given;
    }
  });
  while (given < 2) {
    std::this_thread::yield();
  }
  CHECK_FALSE(jobs.wait_idle(milliseconds(50)));
  CHECK(given == 2);
  gate.set_value();
  owner.join();
  CHECK(jobs.wait_idle(kPatience));
}

TEST_CASE("what a job throws reaches every later call, and no job runs after it", "[jobs]") {
  bool ran = false;
  JobThread jobs;
  jobs.submit([] { throw std::runtime_error("no room on the shelf"); });
  CHECK_THROWS_WITH(jobs.wait_idle(kPatience), "no room on the shelf");
  CHECK_THROWS_WITH(jobs.submit([&] { ran = true; }), "no room on the shelf");
  CHECK_THROWS_WITH(jobs.wait_idle(milliseconds(0)), "no room on the shelf");
  CHECK_FALSE(ran);
}

TEST_CASE("destruction waits for the job under way and drops the one that waits", "[jobs]") {
  std::promise<void> begun;
  std::atomic<bool> finished{false}, dropped_ran{false};
  {
    JobThread jobs;
    jobs.submit([&] {
      begun.set_value();
      std::this_thread::sleep_for(milliseconds(50));
      finished = true;
    });
    begun.get_future().wait();
    jobs.submit([&] { dropped_ran = true; });
  }
  CHECK(finished);
  CHECK_FALSE(dropped_ran);
}

}  // namespace
}  // namespace ringside::rl
