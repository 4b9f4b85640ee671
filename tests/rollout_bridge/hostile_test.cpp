// Guards what security_test.cpp does not: the weights socket's door, what is counted there, and
// bytes that keep every outer rule and break an inner one.
#include <xxhash.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/protocol/wire.h"
#include "rollout_bridge/trainer/journal.h"
#include "rollout_bridge/trainer/trainer_state.h"
#include "rollout_bridge/weights/delta_codec.h"
#include "tests/rollout_bridge/bare_worker.h"
#include "tests/rollout_bridge/direct_trainer.h"

namespace ringside::bridge {
namespace {

using namespace test;

// Asks the weights socket for a chunk, with whatever security `set_up` gives it.
class Asker {
 public:
  template <class SetUp>
  Asker(const std::string& address, SetUp set_up) : socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 0);
    set_up(socket_);
    socket_.connect(address);
  }
  void ask(ChunkBody body = {0, 0, 0, 16, -1, 1}, MessageType type = MessageType::kChunkRequest,
           const std::string& run = "run") {
    const Payload payload = make_payload(type, body);
    send(pack_header({type, run, 1, "asker", 1, 0}, payload));
  }
  void send(const std::string& bytes) { socket_.send(zmq::buffer(bytes), zmq::send_flags::none); }
  // The type of the next answer; nullopt when there is none within `patience`.
  std::optional<MessageType> answer(std::chrono::milliseconds patience = kPatience) {
    socket_.set(zmq::sockopt::rcvtimeo, static_cast<int>(patience.count()));
    zmq::message_t first;
    if (!socket_.recv(first)) {
      return std::nullopt;
    }
    Incoming incoming;
    bool more = first.more();
    incoming.frames.push_back(std::move(first));
    while (more) {
      zmq::message_t next;
      if (!socket_.recv(next)) {
        return std::nullopt;
      }
      more = next.more();
      incoming.frames.push_back(std::move(next));
    }
    const auto message = incoming.parse({});
    if (!message) {
      return std::nullopt;
    }
    return message.value().header().type;
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

void use_keys(zmq::socket_t& socket, const KeyPair& own, const std::string& server) {
  socket.set(zmq::sockopt::curve_serverkey, server);
  socket.set(zmq::sockopt::curve_publickey, own.public_key);
  socket.set(zmq::sockopt::curve_secretkey, own.secret_key);
}

TEST_CASE("the weights socket gives a client without the right key nothing", "[hostile]") {
  const TempDir dir;
  const KeyPair trainer_keys = make_key_pair();
  const KeyPair good = make_key_pair();
  TrainerOptions options = trainer_options(dir);
  options.curve = CurveServer{trainer_keys.secret_key, {{good.public_key, "good box"}}};
  TestTrainer trainer(options);
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  const auto gets_nothing = [&](auto set_up) {
    Asker stranger(trainer.weights_address(), set_up);
    stranger.ask();
    CHECK(eventually([&] { return trainer.counters().denied > 0; }));
    CHECK_FALSE(stranger.answer(std::chrono::milliseconds(200)).has_value());
    CHECK(trainer.counters().weight_requests == 0);
  };
  SECTION("no key") {
    gets_nothing([](zmq::socket_t&) {});
  }
  SECTION("a password instead of a key") {
    gets_nothing([](zmq::socket_t& s) {
      s.set(zmq::sockopt::plain_username, "good box");
      s.set(zmq::sockopt::plain_password, "x");
    });
  }
  SECTION("the key of another trainer") {
    gets_nothing([&](zmq::socket_t& s) { use_keys(s, good, make_key_pair().public_key); });
  }
  SECTION("a key that is not in the list") {
    gets_nothing([&](zmq::socket_t& s) { use_keys(s, make_key_pair(), trainer_keys.public_key); });
  }
  Asker right(trainer.weights_address(),
              [&](zmq::socket_t& s) { use_keys(s, good, trainer_keys.public_key); });
  right.ask();
  CHECK(right.answer() == MessageType::kChunk);
}

TEST_CASE("what the weights socket refuses is counted by reason", "[hostile]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  trainer.publish(make_snapshot("run", 1, 0, make_tensors(0)));
  Asker asker(trainer.weights_address(), [](zmq::socket_t&) {});
  std::array<uint64_t, kReasonCount> expected{};
  uint64_t requests = 0;
  const auto refused = [&](Reason reason) {
    CHECK(asker.answer() == MessageType::kError);
    ++expected[static_cast<std::size_t>(reason)];
    CHECK(trainer.counters().weight_rejected == expected);
    CHECK(trainer.counters().weight_requests == ++requests);
  };
  asker.send("no map");
  refused(Reason::kMalformed);
  asker.send(std::string(1, '\0'));
  refused(Reason::kMalformed);
  asker.ask({}, MessageType::kHello);
  refused(Reason::kUnsupported);
  asker.ask({0, 0, 0, 16, -1, 1}, MessageType::kChunkRequest, "another");
  refused(Reason::kWrongRun);
  asker.ask({0, 3, 0, 16, -1, 1});
  refused(Reason::kInvalidField);
  asker.ask({0, 0, ~uint64_t{0}, 16, -1, 1});
  refused(Reason::kInvalidField);
  asker.ask({0, 0, 0, 16, -1, ~uint64_t{0}});
  refused(Reason::kInvalidField);
  asker.ask({7, 0, 0, 16, -1, 1});
  refused(Reason::kGone);
  asker.ask();
  CHECK(asker.answer() == MessageType::kChunk);
  CHECK(trainer.counters().weight_rejected == expected);
}

TEST_CASE("messages on the rollouts socket are counted, taken or not", "[hostile]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  Asker stranger(trainer.rollout_address(), [](zmq::socket_t&) {});
  for (uint64_t i = 1; i <= 3; ++i) {
    stranger.send("no map");
    CHECK(stranger.answer() == MessageType::kError);
    CHECK(trainer.counters().messages == i);
    CHECK(trainer.counters().rejected[static_cast<std::size_t>(Reason::kMalformed)] == i);
  }
}

TEST_CASE("a peer's words that are no UTF-8 reach no log and no answer", "[hostile]") {
  CHECK(clip_text("a\xf3z") == "a?z");
  CHECK(clip_text("\xc3") == "?");
  CHECK(clip_text("\xc2\x9b"
                  "2J") == "?2J");                 // CSI as one character
  CHECK(clip_text("\xe0\x80\x80") == "???");       // longer than need be
  CHECK(clip_text("\xed\xa0\x80") == "???");       // a surrogate
  CHECK(clip_text("\xf4\x90\x80\x80") == "????");  // above U+10FFFF
  CHECK(clip_text("\xe2\x82\xac\xf0\x9f\x98\x80") == "\xe2\x82\xac\xf0\x9f\x98\x80");
  const TempDir dir;
  TrainerState state(trainer_options(dir), "tcp://127.0.0.1:1");
  const Payload hello = make_payload(MessageType::kHello, HelloBody{1, -1, -1, "", "", -1});
  const std::string header = pack_header({hello.type, "run", 1, "w\xf3", 1, 1}, hello);
  const Frame frame = std::as_bytes(std::span(header));
  state.on_message("w/1", "", parse_message(std::span(&frame, 1), {}), Clock::now());
  CHECK(state.sessions().empty());
  CHECK(state.counters().rejected[static_cast<std::size_t>(Reason::kInvalidField)] == 1);
}

// One zstd frame of one byte.
std::vector<std::byte> plane(std::byte value) {
  std::vector<std::byte> out(ZSTD_compressBound(1));
  out.resize(ZSTD_compress(out.data(), out.size(), &value, 1, 1));
  return out;
}

TEST_CASE("an overwrite plane of more than one zstd frame is refused", "[hostile]") {
  const auto payload = [](const std::vector<std::byte>& gaps,
                          const std::vector<std::byte>& values) {
    std::vector<std::byte> out(1 + 2 * sizeof(uint32_t), std::byte{1});
    for (const auto* part : {&gaps, &values}) {
      const auto length = static_cast<uint32_t>(part->size());
      std::memcpy(&out[part == &gaps ? 1 : 5], &length, sizeof length);
      out.insert(out.end(), part->begin(), part->end());
    }
    return out;
  };
  std::vector<std::byte> target(4);
  CHECK(apply_overwrite(payload(plane(std::byte{2}), plane(std::byte{9})), 1, 1, target).ok());
  CHECK(target == std::vector<std::byte>{{}, {}, std::byte{9}, {}});
  auto longer = plane(std::byte{1});
  std::vector<std::byte> empty(ZSTD_compressBound(0));
  empty.resize(ZSTD_compress(empty.data(), empty.size(), nullptr, 0, 1));
  longer.insert(longer.end(), empty.begin(), empty.end());
  const auto before = target;
  CHECK_FALSE(apply_overwrite(payload(plane(std::byte{1}), longer), 1, 1, target).ok());
  CHECK(target == before);
}

// Appends a record with the right hash to a journal's file.
void add_record(const std::filesystem::path& directory, uint32_t kind,
                std::span<const std::byte> payload) {
  std::ofstream out(directory / "journal.bin", std::ios::binary | std::ios::app);
  const auto size = static_cast<uint32_t>(payload.size());
  const uint64_t hash = XXH3_64bits_withSeed(payload.data(), payload.size(), kind);
  const auto put = [&](const void* data, std::size_t bytes) {
    out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  };
  put(&size, sizeof size);
  put(&kind, sizeof kind);
  put(&hash, sizeof hash);
  put(payload.data(), payload.size());
}

TEST_CASE("a journal whose ranges are none is refused", "[hostile]") {
  constexpr uint32_t kConsumed = 3;
  constexpr uint32_t kReopened = 4;
  const TempDir dir;
  Journal::Options options;
  options.directory = dir.path();
  options.run_id = "run";
  { const Journal fresh(options); }
  const auto with = [&](uint32_t kind, std::vector<int64_t> ids) {
    const std::filesystem::path file = dir.path() / "journal.bin";
    const auto whole = std::filesystem::file_size(file);
    add_record(dir.path(), kind, std::as_bytes(std::span(ids)));
    try {
      const Journal journal(options);
      return true;
    } catch (const std::runtime_error&) {
      std::filesystem::resize_file(file, whole);
      return false;
    }
  };
  CHECK_FALSE(with(kConsumed, {9, 3}));
  CHECK_FALSE(with(kReopened, {9, 3}));
  CHECK_FALSE(with(kConsumed, {-4, 3}));
  CHECK_FALSE(with(kConsumed, {3}));
  CHECK_FALSE(with(kConsumed, {3, 3}));
  CHECK(with(kConsumed, {3, 9}));
  CHECK(with(kConsumed, {}));
  CHECK(with(kReopened, {0, int64_t{1} << 62}));  // and not one id after another
  CHECK(Journal(options).consumed().ranges().empty());
}

TEST_CASE("a journal whose rollouts contradict each other, or are none, stops no start",
          "[hostile]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir, /*ungranted_size=*/1);
  {
    Journal journal({{.directory = options.journal.directory}, "run"});
    for (const int32_t size : {1, 1000}) {
      const Payload payload = encode_rollout(make_rollout(5, size - 1, size));
      const Header header{payload.type, "run", 1, "w", 1, 1};
      REQUIRE(journal.append(5, flatten(pack_header(header, payload), payload)).ok());
    }
    REQUIRE(journal.append(6, std::vector<uint8_t>(40, 1)).ok());  // what some other version wrote
  }
  options.trainer_term = 2;
  options.newest_of_term = {{1, 100}};
  DirectTrainer trainer(options);
  const auto first = trainer.pop();
  REQUIRE(first.has_value());
  CHECK(first->group_size == 1);
  CHECK_FALSE(trainer.pop().has_value());
  std::string told;
  for (const BridgeEvent& event : trainer.state().drain_events()) {
    told += event.text + "\n";
  }
  CHECK(told.find("journal: 1 rollouts dropped (invalid_field)") != std::string::npos);
  CHECK(told.find("journal.bin: 1 records hold no rollout") != std::string::npos);
}

}  // namespace
}  // namespace ringside::bridge
