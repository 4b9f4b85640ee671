// Guards the requests under way to a server: one that is counted as done while it runs, lost when
// its connection breaks, or sent over a connection whose other end may be another process by now.
#include "rl/worker/request_pool.h"

#include <atomic>
#include <latch>
#include <set>
#include <stdexcept>

#include "tests/rollout_bridge/driver.h"
#include "tests/support/catch.h"

using namespace ringside;
using namespace ringside::bridge::test;
using rl::PoolRequest;
using rl::RequestPool;
using rl::ServedAnswer;

namespace {

// What all servers of a test share.
struct Behaviour {
  std::atomic<int> made{0}, begun{0};
  bool refuses_to_connect = false;
  std::latch gate{1};  // requests with stop id 1 wait for it
};

// Completions are the prompt; stop ids say what goes wrong.
class ScriptedServer final : public bridge::InferenceServer {
 public:
  explicit ScriptedServer(Behaviour& behaviour) : behaviour_(behaviour), id_(++behaviour.made) {}
  bridge::Status connect() override {
    connected_ = true;
    return behaviour_.refuses_to_connect
               ? bridge::Status(bridge::Error{bridge::Reason::kClosed, "nobody"})
               : bridge::Status(bridge::Success{});
  }
  bridge::Result<bridge::GenerateResult> generate(const bridge::GenerateRequest& request) override {
    if (!connected_) {
      throw std::logic_error("not connected");
    }
    ++behaviour_.begun;
    switch (request.stop_ids.empty() ? 0 : request.stop_ids[0]) {
      case 1:
        behaviour_.gate.wait();
        break;
      case 2:
        return bridge::Error{bridge::Reason::kClosed, "connection lost"};
      case 3:
        throw std::runtime_error("an exception");
      default:
        break;
    }
    bridge::GenerateResult result;
    result.completion_ids = request.prompt_ids;
    result.label = std::to_string(id_);
    return result;
  }
  bridge::Status check_sampling(const bridge::SamplingSettings&) const override {
    return bridge::Success{};
  }
  bridge::Status pause(bridge::PausePolicy) override { return bridge::Success{}; }
  bridge::Status load_weights_from_disk(const std::string&, int64_t) override {
    return bridge::Success{};
  }
  bridge::Status resume() override { return bridge::Success{}; }
  bridge::Status health() override { return bridge::Success{}; }
  bridge::Result<std::string> weight_version() override { return std::string("0"); }
  bridge::Capabilities capabilities() const override { return {}; }

 private:
  Behaviour& behaviour_;
  int id_;
  bool connected_ = false;
};

rl::ServerFactory factory(Behaviour& behaviour) {
  return [&behaviour] { return std::make_unique<ScriptedServer>(behaviour); };
}

PoolRequest request(int64_t id, int64_t trouble = 0) {
  PoolRequest r;
  r.sample.group_id = id;
  r.request.prompt_ids = {id};
  r.request.stop_ids = {trouble};
  return r;
}

std::vector<ServedAnswer> answers_of(RequestPool& pool, std::size_t count) {
  std::vector<ServedAnswer> all;
  (void)eventually([&] {
    for (ServedAnswer& answer : pool.take_all()) {
      all.push_back(std::move(answer));
    }
    return all.size() >= count;
  });
  return all;
}

}  // namespace

TEST_CASE("request pool: every request is answered once, with its own prompt") {
  Behaviour behaviour;
  RequestPool pool(factory(behaviour), 3);
  for (int64_t i = 0; i < 50; ++i) {
    pool.submit(request(i));
  }
  const auto answers = answers_of(pool, 50);
  REQUIRE(answers.size() == 50);
  CHECK(pool.running() == 0);
  CHECK(pool.take_all().empty());
  std::set<int64_t> groups;
  for (const ServedAnswer& answer : answers) {
    REQUIRE(answer.result);
    CHECK(answer.prompt_ids == std::vector<int64_t>{answer.sample.group_id});
    CHECK(answer.result.value().completion_ids == answer.prompt_ids);
    groups.insert(answer.sample.group_id);
  }
  CHECK(groups.size() == 50);
  CHECK(behaviour.made <= 3);
}

TEST_CASE(
    "request pool: what waits is handed back, what runs is counted until its answer is there") {
  Behaviour behaviour;
  RequestPool pool(factory(behaviour), 2);
  for (int64_t i = 0; i < 5; ++i) {
    pool.submit(request(i, 1));
  }
  REQUIRE(eventually([&] { return behaviour.begun == 2; }));
  CHECK(pool.running() == 5);
  const auto back = pool.withdraw();
  REQUIRE(back.size() == 3);
  CHECK(back[0].sample.group_id == 2);
  CHECK(pool.running() == 2);
  CHECK(pool.take_all().empty());
  behaviour.gate.count_down();
  CHECK(answers_of(pool, 2).size() == 2);
  CHECK(pool.running() == 0);
  CHECK(behaviour.begun == 2);
}

TEST_CASE("request pool: an answer counts as running until it is taken") {
  Behaviour behaviour;
  RequestPool pool(factory(behaviour), 1);
  pool.submit(request(0));
  pool.submit(request(1, 1));
  // With one thread the second begins after the first is answered.
  REQUIRE(eventually([&] { return behaviour.begun == 2; }));
  CHECK(pool.running() == 2);
  CHECK(pool.take_all().size() == 1);
  CHECK(pool.running() == 1);
  behaviour.gate.count_down();
  CHECK(answers_of(pool, 1).size() == 1);
  CHECK(pool.running() == 0);
}

TEST_CASE("request pool: after a lost connection the next request has another one") {
  Behaviour behaviour;
  RequestPool pool(factory(behaviour), 1);
  for (const int64_t trouble : {0, 2, 0, 0}) {
    pool.submit(request(trouble, trouble));
  }
  const auto answers = answers_of(pool, 4);
  REQUIRE(answers.size() == 4);
  REQUIRE(answers[0].result);
  CHECK(answers[0].result.value().label == "1");
  REQUIRE_FALSE(answers[1].result);
  CHECK(answers[1].result.error().reason == bridge::Reason::kClosed);
  for (const std::size_t i : {2U, 3U}) {
    REQUIRE(answers[i].result);
    CHECK(answers[i].result.value().label == "2");
  }
}

TEST_CASE("request pool: no server, and one that throws, are answers too") {
  Behaviour behaviour;
  behaviour.refuses_to_connect = true;
  RequestPool pool(factory(behaviour), 2);
  pool.submit(request(1));
  auto answers = answers_of(pool, 1);
  REQUIRE(answers.size() == 1);
  REQUIRE_FALSE(answers[0].result);
  CHECK(answers[0].result.error().detail == "nobody");
  CHECK(behaviour.begun == 0);
  behaviour.refuses_to_connect = false;
  pool.submit(request(2, 3));
  answers = answers_of(pool, 1);
  REQUIRE(answers.size() == 1);
  REQUIRE_FALSE(answers[0].result);
  CHECK_THAT(answers[0].result.error().detail, Catch::Contains("an exception"));
}

TEST_CASE("request pool: it ends while requests wait") {
  Behaviour behaviour;
  {
    RequestPool pool(factory(behaviour), 1);
    for (int64_t i = 0; i < 3; ++i) {
      pool.submit(request(i, 1));
    }
    REQUIRE(eventually([&] { return behaviour.begun == 1; }));
    behaviour.gate.count_down();
  }
  CHECK(behaviour.begun <= 3);
}
