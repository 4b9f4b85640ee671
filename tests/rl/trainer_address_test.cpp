// Guards what a worker without a trainer says: for whom it waits and why, once and then rarely.
#include "rl/worker/trainer_address.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <fstream>
#include <mutex>

#include "rl/worker/server_wait_notice.h"
#include "tests/rollout_bridge/samples.h"

namespace ringside::rl {
namespace {

using bridge::test::TempDir;
using Catch::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("a wait is said after five seconds and then every minute") {
  WaitNotice notice;
  WaitNotice::TimePoint now{};
  std::vector<int64_t> said;
  for (int64_t ms = 0; ms <= 130'000; ms += 100) {
    if (notice.is_due(now + milliseconds(ms))) {
      said.push_back(ms);
    }
  }
  CHECK(said == std::vector<int64_t>{5000, 65000, 125000});
  notice.reset();
  CHECK_FALSE(notice.is_due(now + seconds(200)));
  CHECK(notice.is_due(now + seconds(205)));
}

TEST_CASE("the reason for the wait names the directory, the file and the run") {
  const TempDir dir;
  const auto file = dir.path() / "run" / "bridge" / "endpoint.json";
  CHECK_THAT(why_no_trainer(file, std::nullopt),
             Contains((dir.path() / "run").string()) && Contains("does not exist"));
  std::filesystem::create_directories(dir.path() / "run");
  CHECK_THAT(why_no_trainer(file, std::nullopt),
             Contains("no trainer has started") && Contains(file.string()));
  const EndpointAddresses ended{"tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "exp-7", 1, true};
  CHECK_THAT(why_no_trainer(file, ended), Contains("exp-7") && Contains("has ended"));
}

TEST_CASE("port 0 and * are no addresses to connect to") {
  CHECK(names_port("tcp://10.0.0.1:5500"));
  CHECK(names_port("ipc:///tmp/rollouts"));
  CHECK_FALSE(names_port("tcp://127.0.0.1:0"));
  CHECK_FALSE(names_port("tcp://127.0.0.1:*"));
  CHECK_FALSE(names_port(""));
}

TEST_CASE("a wait for a server names its address at once and again, with the newest reason") {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> lines;
  const auto wait_for = [&](const std::string& part) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, seconds(20), [&] {
      return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
        return line.find(part) != std::string::npos;
      });
    });
  };
  ServerWaitNotice notice("the vllm server at http://h:1", milliseconds(5),
                          [&](const std::string& line) {
                            const std::lock_guard lock(mutex);
                            lines.push_back(line);
                            changed.notify_all();
                          });
  {
    const std::lock_guard lock(mutex);
    CHECK(lines.at(0) == "waiting for the vllm server at http://h:1");
  }
  CHECK(wait_for("still waiting for the vllm server at http://h:1: it does not answer"));
  notice.set_reason("connection refused");
  CHECK(wait_for("still waiting for the vllm server at http://h:1: connection refused"));
}

TEST_CASE("a run directory that is a file is an error at once") {
  const TempDir dir;
  std::ofstream(dir.path() / "run") << "text";
  WorkerSettings settings{"w", dir.path() / "run" / "bridge" / "endpoint.json",
                          [] { return false; }};
  CHECK_THROWS_WITH(wait_for_trainer(settings),
                    Contains((dir.path() / "run").string()) && Contains("not a directory"));
}

TEST_CASE("an endpoint file that is empty or damaged is waited over until a trainer replaces it") {
  const TempDir dir;
  const auto file = dir.path() / "run" / "bridge" / "endpoint.json";
  std::filesystem::create_directories(file.parent_path());
  const std::string damaged = GENERATE("", "{\"rollout_addr", "[]", "{\"run_id\": 7}");
  std::ofstream(file) << damaged;
  int asked = 0;
  WorkerSettings settings{
      "w", file, [&] {
        if (++asked == 2) {
          write_endpoint_file(file, {"tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "exp-7", 1, false});
        }
        return asked > 20;
      }};
  CHECK_FALSE(current_trainer(file).has_value());  // what a worker that is connected asks
  CHECK(wait_for_trainer(settings).run_id == "exp-7");
  CHECK(current_trainer(file)->trainer_term == 1);
}

TEST_CASE("a worker that waits for a trainer leaves when it is asked to") {
  const TempDir dir;
  int asked = 0;
  WorkerSettings settings{"w", dir.path() / "run" / "bridge" / "endpoint.json",
                          [&] { return ++asked > 1; }};
  CHECK_THROWS_WITH(wait_for_trainer(settings), Contains("stopped before"));
}

}  // namespace
}  // namespace ringside::rl
