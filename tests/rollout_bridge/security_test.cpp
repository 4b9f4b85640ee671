// Guards the bridge's door: a connection without the right keys gets nothing and is counted, one
// with them works on undisturbed, and nobody speaks in another key's session.
#include <catch2/catch.hpp>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/trainer/trainer_state.h"
#include "rollout_bridge/transport/zap_authenticator.h"
#include "rollout_bridge/weights/manifest_codec.h"
#include "tests/rollout_bridge/bare_worker.h"
#include "tests/rollout_bridge/recording_proxy.h"

namespace ringside::bridge {
namespace {

using namespace test;

struct Keys {
  KeyPair trainer = make_key_pair();
  KeyPair good = make_key_pair();
  KeyPair other = make_key_pair();

  TrainerOptions trainer_options(const TempDir& dir) const {
    TrainerOptions o = test::trainer_options(dir);
    o.worker_timeout = kPatience;  // bare workers send no heartbeats
    o.curve = CurveServer{trainer.secret_key,
                          {{good.public_key, "good box"}, {other.public_key, "other box"}}};
    return o;
  }
  CurveClient client(const KeyPair& pair) const { return {pair, trainer.public_key}; }
};

// A worker with the right keys, from HELLO to rollouts that are acknowledged.
class GoodWorker {
 public:
  GoodWorker(TestTrainer& trainer, const CurveClient& keys)
      : trainer_(trainer), worker_(trainer.rollout_address(), &keys, "good") {
    const auto offer = worker_.await<WeightsBody>(MessageType::kWeightsOffer);
    REQUIRE(offer.has_value());
    worker_.send(make_payload(MessageType::kCommitted, *offer), ++seq_);
    worker_.send(make_payload(MessageType::kReady, ReadyBody{0}), ++seq_);
  }
  void deliver_one() {
    const int64_t group = seq_;
    trainer_.grant(groups(group, 1, 1, 0));
    REQUIRE(worker_.await<CreditBody>(MessageType::kCredit).has_value());
    Rollout rollout = make_rollout(group, 0, 1);
    rollout.versions = {{0, 0, static_cast<int64_t>(rollout.completion_ids.size())}};
    worker_.send(encode_rollout(rollout), ++seq_);
    const auto ack = worker_.await<AckBody>(MessageType::kAck);
    REQUIRE(ack.has_value());
    CHECK(ack->status == "ACCEPTED");
  }

 private:
  TestTrainer& trainer_;
  BareWorker worker_;
  uint64_t seq_ = 1;
};

// A socket that says HELLO with whatever security `set_up` gives it.
class Stranger {
 public:
  template <class SetUp>
  Stranger(const std::string& address, SetUp set_up) : socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 0);
    set_up(socket_);
    socket_.connect(address);
    const Payload hello = make_payload(MessageType::kHello, HelloBody{4, -1, -1, "", "stranger"});
    const Header header{hello.type, "run", 1, "stranger", 1, 1};
    socket_.send(zmq::buffer(pack_header(header, hello)), zmq::send_flags::none);
  }
  bool got_anything() {
    Incoming incoming;
    return receive(socket_, false, {}, incoming);
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

bool told(TestTrainer& trainer, const std::string& text) {
  bool found = false;
  std::string all;
  const bool out = eventually([&] {
    for (const BridgeEvent& e : trainer.drain_events()) {
      all += e.text + "\n";
      found = found || e.text.find(text) != std::string::npos;
    }
    return found;
  });
  if (!out) {
    WARN("events were: " << all);
  }
  return out;
}

// Waits for a denial; then whatever would have been answered is there.
void check_denied(TestTrainer& trainer, Stranger& stranger, const std::string& cause) {
  INFO(cause);
  CHECK(eventually([&] { return trainer.counters().denied > 0; }));
  CHECK(told(trainer, cause));
  CHECK_FALSE(stranger.got_anything());
  REQUIRE(trainer.workers().size() == 1);
  CHECK(trainer.workers()[0].worker_id == "good");
}

TEST_CASE("a connection without the right keys gets nothing", "[security]") {
  const TempDir dir;
  const Keys keys;
  TestTrainer trainer(keys.trainer_options(dir));
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  GoodWorker good(trainer, keys.client(keys.good));
  CHECK(told(trainer, "key 'good box'"));
  good.deliver_one();
  CHECK(trainer.counters().denied == 0);
  const auto curve = [](zmq::socket_t& s, const KeyPair& own, const std::string& server) {
    s.set(zmq::sockopt::curve_serverkey, server);
    s.set(zmq::sockopt::curve_publickey, own.public_key);
    s.set(zmq::sockopt::curve_secretkey, own.secret_key);
  };
  SECTION("no key") {
    Stranger stranger(trainer.rollout_address(), [](zmq::socket_t&) {});
    check_denied(trainer, stranger, "refused");  // either side may be the first to see it
  }
  SECTION("a password instead of a key") {
    Stranger stranger(trainer.rollout_address(), [](zmq::socket_t& s) {
      s.set(zmq::sockopt::plain_username, "good box");
      s.set(zmq::sockopt::plain_password, "x");
    });
    check_denied(trainer, stranger, "refused");  // either side may be the first to see it
  }
  SECTION("the key of another trainer") {
    Stranger stranger(trainer.rollout_address(),
                      [&](zmq::socket_t& s) { curve(s, keys.good, make_key_pair().public_key); });
    check_denied(trainer, stranger, "another trainer's key");
  }
  SECTION("a key that is not in the list") {
    const KeyPair unknown = make_key_pair();
    Stranger stranger(trainer.rollout_address(),
                      [&](zmq::socket_t& s) { curve(s, unknown, keys.trainer.public_key); });
    check_denied(trainer, stranger, unknown.public_key);
  }
  good.deliver_one();
}

TEST_CASE("a recorded conversation opens nothing when it is played again", "[security]") {
  const TempDir dir;
  const Keys keys;
  TestTrainer trainer(keys.trainer_options(dir));
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  RecordingProxy proxy(trainer.rollout_address());
  std::string heard;
  {
    const CurveClient client = keys.client(keys.good);
    BareWorker recorded(proxy.address(), &client, "good");
    REQUIRE(recorded.await<WelcomeBody>(MessageType::kWelcome).has_value());
    heard = proxy.recorded();
  }
  REQUIRE(heard.size() > 400);  // greeting, HELLO, INITIATE, the first message
  CHECK(trainer.counters().denied == 0);
  const std::size_t events = trainer.drain_events().size();
  CHECK(events > 0);
  const std::string answer = play_until_closed(trainer.rollout_address(), heard);
  CHECK(eventually([&] { return trainer.counters().denied == 1; }));
  CHECK(told(trainer, "replay"));
  CHECK(answer.find("WELCOME") == std::string::npos);
  CHECK(answer.find("READY") == std::string::npos);  // CURVE's own: the handshake never ended
  const CurveClient other = keys.client(keys.other);
  BareWorker still_open(trainer.rollout_address(), &other, "other");
  CHECK(still_open.await<WelcomeBody>(MessageType::kWelcome).has_value());
}

TEST_CASE("a worker with keys tells nothing to a trainer without the right one", "[security]") {
  const TempDir dir;
  const Keys keys;
  TrainerOptions options = trainer_options(dir);
  SECTION("plain") {}
  SECTION("another secret") {
    options.curve = CurveServer{make_key_pair().secret_key, {{keys.good.public_key, "good"}}};
  }
  TrainerEndpoint impostor(options);
  WorkerOptions worker = worker_options(impostor.rollout_address(), "w");
  worker.curve = keys.client(keys.good);
  WorkerEndpoint endpoint(worker);
  CHECK_FALSE(endpoint.poll(std::chrono::milliseconds(1000)).has_value());
  CHECK(impostor.workers().empty());
  CHECK(impostor.counters().rejected == BridgeCounters{}.rejected);
}

TEST_CASE("a key speaks for its own session only", "[security]") {
  const TempDir dir;
  const Keys keys;
  TestTrainer trainer(keys.trainer_options(dir));
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  GoodWorker good(trainer, keys.client(keys.good));
  const CurveClient other = keys.client(keys.other);
  BareWorker thief(trainer.rollout_address(), &other, "good", 2);  // a higher incarnation
  const auto error = thief.await<ErrorBody>(MessageType::kError);
  REQUIRE(error.has_value());
  CHECK(error->reason == "denied");
  CHECK(error->fatal);
  CHECK(trainer.counters().rejected[static_cast<std::size_t>(Reason::kDenied)] == 1);
  CHECK(told(trainer, "'other box' refused"));
  CHECK(trainer.counters().lost_workers == 0);
  good.deliver_one();
}

TEST_CASE("messages of another key under a session's routing id are refused", "[security]") {
  const TempDir dir;
  const Keys keys;
  TrainerState state(keys.trainer_options(dir), "tcp://127.0.0.1:1");
  const auto say = [&](const std::string& user, const Payload& payload, uint64_t seq) {
    const std::string header = pack_header({payload.type, "run", 1, "w", 1, seq}, payload);
    const Frame frame = std::as_bytes(std::span(header));
    const auto message = parse_message(std::span(&frame, 1), {});
    state.on_message("w/1", user, message, Clock::now());
  };
  say(keys.good.public_key, make_payload(MessageType::kHello, HelloBody{1, -1, -1, "", ""}), 1);
  REQUIRE(state.sessions().size() == 1);
  say(keys.other.public_key, make_payload(MessageType::kBye, EndBody{"mischief"}), 2);
  CHECK(state.sessions().size() == 1);
  CHECK(state.counters().rejected[static_cast<std::size_t>(Reason::kDenied)] == 1);
  say(keys.good.public_key, make_payload(MessageType::kBye, EndBody{""}), 2);
  CHECK(state.sessions().at("w/1").state == SessionState::kBye);
}

TEST_CASE("a body that is none is counted, whatever message it is of", "[security]") {
  const TempDir dir;
  TrainerState state(trainer_options(dir), "tcp://127.0.0.1:1");
  uint64_t seq = 0;
  const auto say = [&](const Payload& payload) {
    const std::string header = pack_header({payload.type, "run", 1, "w", 1, ++seq}, payload);
    const Frame frame = std::as_bytes(std::span(header));
    state.on_message("w/1", "", parse_message(std::span(&frame, 1), {}), Clock::now());
  };
  say(make_payload(MessageType::kHello, HelloBody{1, -1, -1, "", ""}));
  uint64_t expected = 0;
  for (const MessageType type : {MessageType::kReady, MessageType::kStaged, MessageType::kCommitted,
                                 MessageType::kStageFailed, MessageType::kHeartbeat}) {
    say(make_payload(type, std::map<std::string, std::string>{{"version", "many"}}));
    CHECK(state.counters().rejected[static_cast<std::size_t>(Reason::kMalformed)] == ++expected);
  }
}

TEST_CASE("a peer's words are cut and harmless in logs and answers", "[security]") {
  CHECK(clip_text("plain w\xc3\xb6rds") == "plain w\xc3\xb6rds");
  CHECK(clip_text("a\nb\x1b[2J\x7f") == "a?b?[2J?");
  CHECK(clip_text("ab\xc3\xb6", 3) == "ab");  // not within a character
  CHECK(clip_text(std::string(5000, 'x')).size() == 1024);
}

TEST_CASE("a manifest with bytes behind it and a temperature beyond fp32 are refused",
          "[security]") {
  std::vector<uint8_t> bytes =
      encode_manifest(make_snapshot("run", 1, 0, make_tensors(0))->manifest);
  CHECK(decode_manifest(std::as_bytes(std::span(bytes))).ok());
  bytes.push_back(0xc0);
  const auto longer = decode_manifest(std::as_bytes(std::span(bytes)));
  REQUIRE_FALSE(longer.ok());
  CHECK(longer.error().reason == Reason::kMalformed);
  Payload payload = encode_rollout(make_rollout(0, 0, 1));
  const auto packed = [](double value) {
    msgpack::sbuffer out;
    msgpack::pack(out, value);
    return std::string(out.data(), out.size());
  };
  const std::string temperature = packed(make_rollout(0, 0, 1).temperature);
  REQUIRE(payload.body.find(temperature) != std::string::npos);
  payload.body.replace(payload.body.find(temperature), temperature.size(), packed(1e300));
  const auto flat = flatten(pack_header({payload.type, "run", 1, "w", 1, 1}, payload), payload);
  const auto message = parse_flat(std::as_bytes(std::span(flat)), {});
  REQUIRE(message.ok());
  const auto rollout = decode_rollout(message.value());
  REQUIRE_FALSE(rollout.ok());
  CHECK(rollout.error().reason == Reason::kNotFinite);
}

TEST_CASE("with keys a network address may be bound, other transports not", "[security]") {
  for (const char* address : {"tcp://*:0", "tcp://0.0.0.0:5555", "tcp://[::]:5555",
                              "tcp://10.0.0.1:5555", "tcp://box.example.com:5555"}) {
    CHECK_NOTHROW(check_bind_address(address, true));
    CHECK_THROWS_WITH(check_bind_address(address), Catch::Contains("CURVE"));
  }
  CHECK_THROWS_WITH(check_bind_address("pgm://eth0;1.2.3.4:5", true), Catch::Contains("tcp://"));
  for (const char* address :
       {"tcp://127.0.0.1:*", "tcp://localhost:1", "tcp://[::1]:1", "ipc://x"}) {
    CHECK_NOTHROW(check_bind_address(address));
    CHECK_NOTHROW(check_bind_address(address, true));
  }
}

TEST_CASE("keys that are none are refused at the start", "[security]") {
  const TempDir dir;
  const Keys keys;
  TrainerOptions bad_secret = keys.trainer_options(dir);
  bad_secret.curve->secret_key.pop_back();
  CHECK_THROWS_AS(TrainerEndpoint(bad_secret), std::invalid_argument);
  TrainerOptions bad_list = keys.trainer_options(dir);
  bad_list.curve->allowed[1].public_key = "short";
  CHECK_THROWS_WITH(TrainerEndpoint(bad_list), Catch::Contains("other box"));
  WorkerOptions worker = worker_options("tcp://127.0.0.1:1", "w");
  worker.curve = keys.client(keys.good);
  worker.curve->own.public_key = keys.other.public_key;
  CHECK_THROWS_WITH(WorkerEndpoint(worker), Catch::Contains("Z85"));
}

}  // namespace
}  // namespace ringside::bridge
