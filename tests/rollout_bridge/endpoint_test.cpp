// Guards the whole conversation over real sockets: weights staged, verified and committed, work
// handed out, rollouts delivered exactly once while workers die, come late or lie.
#include <catch2/catch.hpp>
#include <set>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/transport/zmq_io.h"
#include "tests/rollout_bridge/bare_worker.h"
#include "tests/rollout_bridge/driver.h"

namespace ringside::bridge {
namespace {

using namespace test;

TEST_CASE("two workers take weights, sample and end", "[endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  TestWorker a(trainer.rollout_address(), "a");
  TestWorker b(trainer.rollout_address(), "b");
  REQUIRE(trainer.wait_for_commit(0, 2, kPatience));
  trainer.grant(groups(0, 20, 4, 0));
  const auto got = collect(trainer, 80);
  CHECK(got.size() == 80);
  trainer.publish(make_snapshot("run", 1, 1, make_tensors(1)));
  REQUIRE(trainer.wait_for_commit(1, 2, kPatience));
  trainer.grant(groups(20, 10, 4, 1));
  for (const Rollout& r : collect(trainer, 40)) {
    CHECK(r.versions.front().version == 1);
  }
  CHECK_FALSE(trainer.pop(std::chrono::milliseconds(50)).has_value());
  const BridgeCounters counters = trainer.counters();
  CHECK(counters.accepted == 120);
  CHECK(counters.duplicate == 0);
  CHECK(a.delivered() + b.delivered() == 120);
  CHECK(a.delivered() > 0);
  CHECK(b.delivered() > 0);
  trainer.end("done");
  CHECK(a.wait_ended());
  CHECK(b.wait_ended());
  CHECK(a.leave());
}

TEST_CASE("a worker that dies is replaced and every sample comes once", "[endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  auto dying =
      std::make_unique<TestWorker>(trainer.rollout_address(), "a", Habit{.max_rollouts = 5});
  REQUIRE(trainer.wait_for_commit(0, 1, kPatience));
  trainer.grant(groups(0, 10, 4, 0));
  REQUIRE(collect(trainer, 5).size() == 5);
  dying.reset();  // sockets closed without BYE
  TestWorker b(trainer.rollout_address(), "b");
  CHECK(collect(trainer, 35).size() == 35);
  CHECK_FALSE(trainer.pop(std::chrono::milliseconds(50)).has_value());
  CHECK(trainer.counters().lost_workers == 1);
  bool told = false;
  for (const BridgeEvent& e : trainer.drain_events()) {
    told =
        told || (e.worker_id == "a" && e.text.find("groups are reassigned") != std::string::npos);
  }
  CHECK(told);
}

TEST_CASE("a late joiner gets the newest weights only", "[endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  for (int64_t v = 0; v < 5; ++v) {
    trainer.publish(make_snapshot("run", 1, v, make_tensors(v)));
  }
  TestWorker late(trainer.rollout_address(), "late");
  REQUIRE(trainer.wait_for_commit(4, 1, kPatience));
  CHECK(late.installed() == std::vector<int64_t>{4});
  CHECK_THROWS_AS(trainer.publish(make_snapshot("run", 1, 4, make_tensors(4))),
                  std::invalid_argument);
  CHECK_THROWS_AS(trainer.publish(make_snapshot("run", 2, 9, make_tensors(4))),
                  std::invalid_argument);
}

TEST_CASE("the same rollout twice is acknowledged and delivered once", "[endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  TestWorker worker(trainer.rollout_address(), "a", Habit{.repeat = 3});
  trainer.grant(groups(0, 5, 2, 0));
  CHECK(collect(trainer, 10).size() == 10);
  CHECK(worker.drain());
  CHECK(trainer.counters().duplicate == 20);
  CHECK_FALSE(trainer.pop(std::chrono::milliseconds(50)).has_value());
}

TEST_CASE("damaged weights are not installed, whole ones are", "[endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  // The bytes change behind the manifest's back: each chunk arrives whole, the tensor is wrong.
  auto floats = std::make_shared<std::vector<float>>(3000, 1.0F);
  const Buffer buffer{floats, std::as_bytes(std::span(*floats))};
  auto snapshot = make_snapshot("run", 1, 0, {{"w", "F32", {3000}, buffer}});
  (*floats)[1234] = 2.0F;
  trainer.publish(snapshot);
  TestWorker worker(trainer.rollout_address(), "a");
  const auto damaged = [&] {
    return trainer.counters().rejected[static_cast<std::size_t>(Reason::kChecksum)] > 0;
  };
  REQUIRE(eventually(damaged));
  CHECK(worker.installed().empty());
  trainer.publish(make_snapshot("run", 1, 1, make_tensors(1)));
  CHECK(trainer.wait_for_commit(1, 1, kPatience));
  CHECK(worker.installed() == std::vector<int64_t>{1});
}

TEST_CASE("a worker whose installed bytes differ gets no work", "[endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  TestWorker liar(trainer.rollout_address(), "liar", Habit{.wrong_roots = 1000});
  trainer.grant(groups(0, 2, 2, 0));
  REQUIRE(eventually([&] {
    const auto workers = trainer.workers();
    return workers.size() == 1 && workers[0].state == "quarantined";
  }));
  CHECK_FALSE(trainer.pop(std::chrono::milliseconds(100)).has_value());
  TestWorker honest(trainer.rollout_address(), "honest", Habit{.wrong_roots = 1});
  CHECK(collect(trainer, 4).size() == 4);  // its second try verified
}

TEST_CASE("failed samples are asked for again", "[endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  TestWorker worker(trainer.rollout_address(), "a", Habit{.failures = 3});
  trainer.grant(groups(0, 4, 4, 0));
  const auto got = collect(trainer, 16);
  REQUIRE(got.size() == 16);
  for (const Rollout& r : got) {
    CHECK(r.finish_reason != FinishReason::kError);
  }
  CHECK(trainer.counters().requeued == 3);
}

TEST_CASE("grants stop at the capacity of the queue", "[endpoint]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.max_queued_rollouts = 8;
  TestTrainer trainer(options);
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  TestWorker worker(trainer.rollout_address(), "a");
  trainer.grant(groups(0, 10, 4, 0));
  REQUIRE(eventually([&] { return trainer.counters().accepted == 8; }));  // two groups
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(trainer.counters().accepted == 8);  // the third has no room
  CHECK(collect(trainer, 40).size() == 40);
  CHECK_THROWS_AS(trainer.grant({{99, 9, 0}}), std::invalid_argument);
}

TEST_CASE("noise on the sockets is counted and answered, and work goes on", "[endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  zmq::context_t context;
  zmq::socket_t noise(context, zmq::socket_type::dealer);
  noise.set(zmq::sockopt::linger, 0);
  noise.connect(trainer.rollout_address());
  zmq::socket_t bulk(context, zmq::socket_type::dealer);
  bulk.set(zmq::sockopt::linger, 0);
  bulk.connect(trainer.weights_address());
  std::mt19937 rng(4);
  for (int i = 0; i < 200; ++i) {
    std::string junk(rng() % 64, '\0');
    for (char& c : junk) {
      c = static_cast<char>(rng());
    }
    noise.send(zmq::buffer(junk), zmq::send_flags::none);
    bulk.send(zmq::buffer(junk), zmq::send_flags::none);
  }
  Incoming answer;
  noise.set(zmq::sockopt::rcvtimeo, 5000);
  zmq::message_t frame;
  REQUIRE(noise.recv(frame));
  answer.frames.push_back(std::move(frame));
  const auto error = answer.parse({});
  REQUIRE(error.ok());
  CHECK(error.value().header().type == MessageType::kError);
  TestWorker worker(trainer.rollout_address(), "a");
  trainer.grant(groups(0, 3, 2, 0));
  CHECK(collect(trainer, 6).size() == 6);
  uint64_t rejected = 0;
  for (const uint64_t n : trainer.counters().rejected) {
    rejected += n;
  }
  CHECK(rejected == 200);
}

TEST_CASE("a worker that falls silent on a live connection is lost", "[endpoint]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir);
  options.worker_timeout = std::chrono::milliseconds(300);
  TestTrainer trainer(options);
  BareWorker silent(trainer.rollout_address());
  REQUIRE(silent.await<WelcomeBody>(MessageType::kWelcome).has_value());
  CHECK(eventually([&] { return trainer.counters().lost_workers == 1; }));
  CHECK(trainer.workers().empty());
  silent.send(make_payload(MessageType::kReady, ReadyBody{0}), 2);
  const auto error = silent.await<ErrorBody>(MessageType::kError);
  REQUIRE(error.has_value());
  CHECK(error->reason == "unknown_session");
  CHECK_FALSE(error->fatal);
}

TEST_CASE("a gap in the sequence ends the session, not the trainer", "[endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  BareWorker lossy(trainer.rollout_address());
  REQUIRE(lossy.await<WelcomeBody>(MessageType::kWelcome).has_value());
  lossy.send(make_payload(MessageType::kReady, ReadyBody{0}), 3);
  const auto error = lossy.await<ErrorBody>(MessageType::kError);
  REQUIRE(error.has_value());
  CHECK(error->reason == "sequence_gap");
  CHECK(trainer.workers().empty());
}

TEST_CASE("an invalid rollout is rejected by name and its sample asked for again", "[endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  BareWorker worker(trainer.rollout_address());
  const auto offer = worker.await<WeightsBody>(MessageType::kWeightsOffer);
  REQUIRE(offer.has_value());
  worker.send(make_payload(MessageType::kCommitted, *offer), 2);
  worker.send(make_payload(MessageType::kReady, ReadyBody{0}), 3);
  trainer.grant(groups(0, 1, 1, 0));
  REQUIRE(worker.await<CreditBody>(MessageType::kCredit).has_value());
  Payload rollout = encode_rollout(make_rollout(0, 0, 1));
  Rollout body = make_rollout(0, 0, 1);
  body.temperature = 0;
  rollout.body = make_payload(MessageType::kRollout, body).body;
  worker.send(rollout, 4);
  const auto ack = worker.await<AckBody>(MessageType::kAck);
  REQUIRE(ack.has_value());
  CHECK(ack->status == "REJECTED");
  CHECK(ack->reason == "invalid_field");
  CHECK(ack->detail.find("temperature") != std::string::npos);
  const auto again = worker.await<CreditBody>(MessageType::kCredit);
  REQUIRE(again.has_value());
  CHECK(again->groups.at(0).attempt == 1);
}

TEST_CASE("unsafe addresses and bad options are refused", "[endpoint]") {
  const TempDir dir;
  for (const char* address :
       {"tcp://0.0.0.0:5555", "tcp://*:5555", "tcp://10.0.0.1:5555", "tcp://[::]:5555",
        "tcp://127.example.com:5555", "tcp://localhost.example.com:5555", "pgm://eth0;1.2.3.4:5"}) {
    TrainerOptions options = trainer_options(dir);
    options.rollout_address = address;
    CHECK_THROWS_WITH(TrainerEndpoint(options), Catch::Contains("CURVE"));
  }
  TrainerOptions nameless = trainer_options(dir);
  nameless.run_id.clear();
  CHECK_THROWS_AS(TrainerEndpoint(nameless), std::invalid_argument);
  CHECK_THROWS_AS(WorkerEndpoint(WorkerOptions{}), std::invalid_argument);
}

TEST_CASE("another run and an old incarnation are refused for good", "[endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  const auto failure = [&](WorkerOptions options) -> std::string {
    WorkerEndpoint worker(std::move(options));
    for (const auto until = std::chrono::steady_clock::now() + kPatience;
         std::chrono::steady_clock::now() < until;) {
      const auto event = worker.poll(std::chrono::milliseconds(100));
      if (event && std::holds_alternative<Failed>(*event)) {
        return std::get<Failed>(*event).reason;
      }
    }
    return "";
  };
  WorkerOptions other = worker_options(trainer.rollout_address(), "w");
  other.run_id = "another";
  CHECK(failure(other) == "wrong_run");
  WorkerOptions fresh = worker_options(trainer.rollout_address(), "w");
  fresh.incarnation = 100;
  WorkerEndpoint in(fresh);
  REQUIRE(in.poll(kPatience).has_value());  // Connected
  WorkerOptions old = worker_options(trainer.rollout_address(), "w");
  old.incarnation = 7;
  CHECK(failure(old) == "fenced");
}

}  // namespace
}  // namespace ringside::bridge
