// Guards the loop of a worker with an inference server, with a link and a server of the test's own:
// requests that go on while weights of a restarted trainer are loaded.
#include "rl/worker/server_loop.h"

#include <catch2/catch.hpp>

#include "tests/rl/fake_link.h"
#include "tests/rollout_bridge/direct_trainer.h"

namespace ringside::rl {
namespace {

using namespace bridge::test;

// A server that keeps its requests while it loads weights. Each answer has a token of each version.
class KeepingServer final : public ServedPolicy {
 public:
  void submit(const bridge::GrantedSample& sample, const bridge::Manifest& weights) override {
    running_.push_back({sample, {weights.version}});
  }
  std::vector<ServedAnswer> take_answers() override {
    std::vector<ServedAnswer> answers;
    for (const Request& request : answers_now ? std::exchange(running_, {}) : Requests()) {
      bridge::GenerateResult result;
      for (const int64_t version : request.versions) {
        const auto begin = std::ssize(result.completion_ids);
        result.completion_ids.push_back(7);
        result.versions.push_back({std::to_string(version), begin, begin + 1});
      }
      answers.push_back({request.sample, {1}, std::move(result)});
    }
    return answers;
  }
  std::vector<bridge::GrantedSample> withdraw() override { return {}; }
  std::size_t running() const override { return running_.size(); }
  bridge::Status install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) override {
    for (Request& request : running_) {
      request.versions.push_back(snapshot->manifest.version);
    }
    return bridge::Success{};
  }
  bridge::Status verify() override { return bridge::Success{}; }
  bridge::Status interrupt() override { return bridge::Success{}; }
  std::string root_hash() const override { return ""; }
  std::vector<bridge::Rollout> rollouts(std::vector<ServedAnswer> answers, int64_t) override {
    std::vector<bridge::Rollout> rollouts;
    for (const ServedAnswer& answer : answers) {
      bridge::Rollout& r = rollouts.emplace_back(failed(answer, 0));
      for (const bridge::LabelSpan& span : answer.result.value().versions) {
        r.versions.push_back({*bridge::version_of_label(span.label), span.begin, span.end});
      }
    }
    return rollouts;
  }
  bridge::Rollout failed(const ServedAnswer& answer, int64_t) override {
    bridge::Rollout r;
    r.group_id = answer.sample.group_id;
    r.sample_index = answer.sample.sample_index;
    return r;
  }
  bool answers_now = false;

 private:
  struct Request {
    bridge::GrantedSample sample;
    std::vector<int64_t> versions;
  };
  using Requests = std::vector<Request>;
  Requests running_;
};

TEST_CASE("server loop: a rollout is of the trainer term of its first token") {
  test::FakeLink link;
  KeepingServer server;
  ServerConfig options;
  options.pause = ServerPause::kKeep;
  options.concurrency = 2;
  ServerLoop::Clock::time_point now{};
  ServerLoop loop(link, server, {"w", {}, [] { return false; }}, options, [&] { return now; });
  const auto start = [&](int64_t trainer_term, int64_t version) {
    link.events.push_back(bridge::Connected{"run", trainer_term});
    link.events.push_back(bridge::WeightsReady{
        bridge::make_snapshot("run", trainer_term, version, make_tensors(version))});
    now += loop.turn();
  };
  const auto turn = [&](std::vector<int32_t> granted) {
    link.events.push_back(bridge::Granted{{{0, 4, 0, 0, std::move(granted)}}});
    now += loop.turn();
  };
  start(1, 5);
  turn({0});
  start(2, 3);  // a later start, from an older checkpoint
  turn({0, 1});
  server.answers_now = true;
  now += loop.turn();
  REQUIRE(link.sent.size() == 2);
  CHECK(link.sent[0].trainer_term == 1);
  CHECK(link.sent[0].versions == std::vector<bridge::VersionSpan>{{5, 0, 1}, {3, 1, 2}});
  CHECK(link.sent[1].trainer_term == 2);
  CHECK(link.sent[1].versions == std::vector<bridge::VersionSpan>{{3, 0, 1}});
}

}  // namespace
}  // namespace ringside::rl
