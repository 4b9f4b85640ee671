// Guards the wire: what is packed must come back equal, and bytes that were cut or changed must be
// refused, never crash and never come back as a different rollout.
#include "rollout_bridge/protocol/codec.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/weights/manifest_codec.h"
#include "tests/rollout_bridge/samples.h"

namespace ringside::bridge {
namespace {

using test::make_rollout;

std::vector<Rollout> many(uint32_t seed, int count) {
  std::vector<Rollout> out;
  for (int i = 0; i < count; ++i) {
    out.push_back(make_rollout(i, i % 3, 3, seed + i));
  }
  return out;
}

// A message as separate frames, the way a socket delivers it.
struct Frames {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<Frame> spans() const { return std::vector<Frame>(bytes.begin(), bytes.end()); }
};

Frames frames_of(const Payload& payload) {
  const std::string header = pack_header({payload.type, "run", 1, "w", 9, 1}, payload);
  Frames out;
  const auto head = std::as_bytes(std::span(header));
  out.bytes.emplace_back(head.begin(), head.end());
  for (const Buffer& b : payload.buffers) {
    out.bytes.emplace_back(b.bytes.begin(), b.bytes.end());
  }
  return out;
}

Result<Rollout> decode(const Frames& frames, const Limits& limits = {}) {
  const auto spans = frames.spans();
  auto message = parse_message(spans, limits);
  if (!message) {
    return message.error();
  }
  return decode_rollout(message.value(), limits);
}

std::vector<FlatRollout> flat(const std::vector<Rollout>& rollouts) {
  std::vector<FlatRollout> messages;
  for (const Rollout& rollout : rollouts) {
    messages.push_back(flatten_rollout(rollout));
  }
  return messages;
}

TEST_CASE("a rollout whose message lacks a field is refused by the field's name", "[codec]") {
  for (const std::string field :
       {"attempt", "group_id", "group_size", "sample_index", "temperature", "top_p", "top_k",
        "trainer_term", "finish_reason"}) {
    CAPTURE(field);
    Payload payload = encode_rollout(make_rollout(3, 1, 2));
    const auto at = payload.body.find(field);
    REQUIRE(at != std::string::npos);
    payload.body[at] = 'x';
    const auto decoded = decode(frames_of(payload));
    REQUIRE_FALSE(decoded.ok());
    CHECK(decoded.error().reason == Reason::kInvalidField);
    CHECK(decoded.error().detail.find(field) != std::string::npos);
  }
}

TEST_CASE("rollouts round-trip alone and in batches", "[codec]") {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Rollout r = make_rollout(seed, 1, 2, seed);
    const auto back = decode(frames_of(encode_rollout(r)));
    REQUIRE(back.ok());
    REQUIRE(back.value() == r);
  }
  for (const int count : {0, 1, 17}) {
    const std::vector<Rollout> batch = many(3, count);
    const auto messages = split_messages(join_messages(flat(batch)));
    REQUIRE(messages.ok());
    const auto back = read_rollouts(messages.value());
    REQUIRE(back.ok());
    CHECK(back.value() == batch);
  }
  REQUIRE(make_rollout(5, 1, 4, 2).branches.size() == 3);  // those were among them
  Rollout bad = make_rollout(1, 0, 1);
  bad.logprobs.pop_back();
  CHECK(decode(frames_of(encode_rollout(bad))).error().reason == Reason::kLengths);
}

// An old peer sends no such frame; a careless one sends it misshapen or too long.
TEST_CASE("the frames of turns and branches are optional, shaped and bounded", "[codec]") {
  const Rollout rollout = make_rollout(5, 1, 4, 2);
  const Payload good = encode_rollout(rollout);
  const auto spec_of = [](Payload& p, const std::string& name) {
    return std::find_if(p.specs.begin(), p.specs.end(),
                        [&](const FrameSpec& s) { return s.name == name; });
  };
  for (const std::string name : {"turn_rewards", "branches"}) {
    INFO(name);
    Payload old = good;
    const auto spec = spec_of(old, name);
    REQUIRE(spec != old.specs.end());
    old.buffers.erase(old.buffers.begin() + (spec - old.specs.begin()));
    old.specs.erase(spec);
    const auto back = decode(frames_of(old));
    REQUIRE(back.ok());
    CHECK(back.value().turn_rewards.empty() == (name == "turn_rewards"));
    CHECK(back.value().branches.empty() == (name == "branches"));
    Payload flat = good;
    spec_of(flat, name)->dtype = name == "branches" ? "F64" : "I64";
    CHECK(decode(frames_of(flat)).error().reason == Reason::kFrames);
  }
  Payload columns = good;
  spec_of(columns, "branches")->shape = {2, 3};
  CHECK(decode(frames_of(columns)).error().reason == Reason::kFrames);
  Limits few;
  few.max_branches = 2;
  CHECK(decode(frames_of(good), few).error().reason == Reason::kLimit);
  few = {};
  few.max_turns = 1;
  CHECK(decode(frames_of(good), few).error().reason == Reason::kLimit);
}

TEST_CASE("the frames of routed experts come together, shaped and bounded", "[codec]") {
  const Rollout rollout = make_rollout(5, 1, 4, 2);
  const Payload good = encode_rollout(rollout);
  const auto index = [&](const std::string& name) {
    return std::find_if(good.specs.begin(), good.specs.end(),
                        [&](const FrameSpec& s) { return s.name == name; }) -
           good.specs.begin();
  };
  const auto layers = index("routed_layers"), experts = index("routed_experts");
  REQUIRE(static_cast<std::size_t>(experts) < good.specs.size());
  const auto reason = [](const Payload& p) { return decode(frames_of(p)).error().reason; };
  const auto without = [&](std::ptrdiff_t frame) {
    Payload less = good;
    less.buffers.erase(less.buffers.begin() + frame);
    less.specs.erase(less.specs.begin() + frame);
    return less;
  };
  CHECK(reason(without(layers)) == Reason::kFrames);
  CHECK(reason(without(experts)) == Reason::kLengths);
  const auto old = decode(frames_of([&] {
    Payload none = without(experts);
    none.buffers.erase(none.buffers.begin() + layers);
    none.specs.erase(none.specs.begin() + layers);
    return none;
  }()));
  REQUIRE(old.ok());
  CHECK(old.value().routed_experts == RoutedExperts{});
  Payload damaged = good;
  const int64_t rows = good.specs[experts].shape[0];
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{rows, 4}, {2 * rows, 1, 2}}) {
    damaged.specs[experts].shape = shape;
    CHECK(reason(damaged) == Reason::kFrames);
  }
  damaged = good;
  damaged.specs[experts].dtype = "I8";
  CHECK(reason(damaged) == Reason::kFrames);
  Limits few;
  few.max_experts_per_token = 1;
  CHECK(decode(frames_of(good), few).error().reason == Reason::kFrames);
  // Two ids of one byte for one of two bytes: half the rows.
  Payload wide = encode_rollout(make_rollout(5, 1, 4, 4));
  REQUIRE(decode(frames_of(wide)).value().routed_experts.id_bytes == 2);
}

TEST_CASE("every truncation and 10000 random mutations of a batch are refused", "[codec]") {
  const std::vector<uint8_t> good = join_messages(flat(many(11, 3)));
  for (std::size_t length = 0; length < good.size(); ++length) {
    REQUIRE_FALSE(split_messages(std::span(good).first(length)).ok());
  }
  std::mt19937 rng(5);
  for (int round = 0; round < 10000; ++round) {
    std::vector<uint8_t> bytes = good;
    for (int n = static_cast<int>(rng() % 4); n >= 0; --n) {
      bytes[rng() % bytes.size()] ^= static_cast<uint8_t>(1 + rng() % 255);
    }
    if (bytes != good) {
      REQUIRE_FALSE(split_messages(bytes).ok());
    }
  }
}

// The batch's outer hash hides the parser; here the frames themselves are damaged. Only a field of
// the header that no hash covers may change a value, and then the value is valid.
TEST_CASE("10000 random mutations of frames never crash the parser", "[codec]") {
  const Frames good = frames_of(encode_rollout(make_rollout(7, 1, 4, 12)));
  std::mt19937 rng(6);
  int accepted = 0;
  for (int round = 0; round < 10000; ++round) {
    Frames damaged = good;
    auto& frame = damaged.bytes[rng() % 2 == 0 ? 0 : rng() % damaged.bytes.size()];
    switch (rng() % 4) {
      case 0:
        frame.resize(rng() % (frame.size() + 1));
        break;
      case 1:
        frame.push_back(std::byte{0xdd});
        break;
      case 2:
        damaged.bytes.erase(damaged.bytes.begin() +
                            static_cast<long>(rng() % damaged.bytes.size()));
        break;
      default:
        if (!frame.empty()) {
          frame[rng() % frame.size()] = static_cast<std::byte>(rng());
        }
    }
    const auto back = decode(damaged);
    if (back.ok()) {
      ++accepted;
      REQUIRE(validate(back.value()).ok());
      REQUIRE(back.value().completion_ids == make_rollout(7, 1, 4, 12).completion_ids);
    }
  }
  CHECK(accepted < 5000);
}

TEST_CASE("a five-byte header cannot ask for memory", "[codec]") {
  const unsigned char bombs[][5] = {{0xdd, 0xff, 0xff, 0xff, 0xff},   // array32
                                    {0xdf, 0xff, 0xff, 0xff, 0xff},   // map32
                                    {0xc6, 0xff, 0xff, 0xff, 0xff},   // bin32
                                    {0xdb, 0xff, 0xff, 0xff, 0xff}};  // str32
  for (const auto& bomb : bombs) {
    const std::vector<Frame> frames = {std::as_bytes(std::span(bomb))};
    const auto parsed = parse_message(frames, {});
    REQUIRE_FALSE(parsed.ok());
    // Containers are what msgpack allocates ahead; strings must first be there.
    if (bomb[0] >= 0xdd) {
      CHECK(parsed.error().reason == Reason::kLimit);
    }
    CHECK_FALSE(decode_manifest(frames[0]).ok());
  }
  const std::vector<unsigned char> deep(1000, 0x91);  // nested arrays
  const std::vector<Frame> frames = {std::as_bytes(std::span(deep))};
  CHECK_FALSE(parse_message(frames, {}).ok());
}

TEST_CASE("frames that contradict the header are refused with their reason", "[codec]") {
  const Payload good = encode_rollout(make_rollout(7, 1, 4, 12));
  const auto reason_of = [&](auto change, const Limits& limits = {}) {
    Payload payload = good;
    change(payload);
    const auto back = decode(frames_of(payload), limits);
    REQUIRE_FALSE(back.ok());
    return back.error().reason;
  };
  CHECK(reason_of([](Payload& p) { p.specs[0].bytes += 4; }) == Reason::kFrames);
  CHECK(reason_of([](Payload& p) { p.specs[0].shape[0] += 1; }) == Reason::kFrames);
  CHECK(reason_of([](Payload& p) { p.specs[0].shape[0] = -1; }) == Reason::kFrames);
  CHECK(reason_of([](Payload& p) { p.specs[0].dtype = "U9"; }) == Reason::kFrames);
  CHECK(reason_of([](Payload& p) { p.specs[0].dtype = "F32"; }) == Reason::kFrames);
  CHECK(reason_of([](Payload& p) { p.specs[0].xxh3 ^= 1; }) == Reason::kChecksum);
  CHECK(reason_of([](Payload& p) { p.specs[1].name = "prompt_ids"; }) == Reason::kFrames);
  CHECK(reason_of([](Payload& p) { p.specs[2].name = "other"; }) == Reason::kFrames);
  CHECK(reason_of([](Payload& p) { p.specs.pop_back(); }) == Reason::kFrames);
  Limits few;
  few.max_frames = 3;
  CHECK(reason_of([](Payload&) {}, few) == Reason::kFrames);
  Limits small;
  small.max_message_bytes = 10;
  CHECK(reason_of([](Payload&) {}, small) == Reason::kLimit);
  Limits head;
  head.max_header_bytes = 100;
  CHECK(reason_of([](Payload&) {}, head) == Reason::kLimit);
}

TEST_CASE("a hash may be left out of a CHUNK alone, and one that is stated must be right",
          "[codec]") {
  const Buffer data = Buffer::own(std::vector<uint8_t>{1, 2, 3, 4});
  for (const MessageType type :
       {MessageType::kChunk, MessageType::kRollout, MessageType::kCommit}) {
    Payload payload = make_payload(type, ChunkBody{1, 0, 0, 4});
    payload.add_unhashed("data", "U8", {4}, data);
    const Frames bare = frames_of(payload);
    CHECK(parse_message(bare.spans(), {}).ok() == (type == MessageType::kChunk));
    payload.specs[0].xxh3 = 1;
    const Frames wrong = frames_of(payload);
    const auto refused = parse_message(wrong.spans(), {});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().reason == Reason::kChecksum);
  }
}

TEST_CASE("manifests round-trip and survive mutation", "[codec]") {
  const Manifest m = make_snapshot("run", 2, 9, test::make_tensors(9))->manifest;
  const std::vector<uint8_t> good = encode_manifest(m);
  const auto back = decode_manifest(std::as_bytes(std::span(good)));
  REQUIRE(back.ok());
  CHECK(back.value() == m);
  std::mt19937 rng(8);
  for (int round = 0; round < 10000; ++round) {
    std::vector<uint8_t> bytes = good;
    bytes[rng() % bytes.size()] = static_cast<uint8_t>(rng());
    if (rng() % 3 == 0) {
      bytes.resize(rng() % (bytes.size() + 1));
    }
    const auto damaged = decode_manifest(std::as_bytes(std::span(bytes)));
    if (damaged.ok()) {
      REQUIRE(damaged.value().root_hash == m.root_hash);
    }
  }
}

TEST_CASE("a rollout is flattened under the limits that it is given", "[codec]") {
  Limits wide;
  wide.max_header_bytes = 256 * 1024;
  Rollout r = make_rollout(1, 0, 2, 1);
  for (char c = 'a'; c < 'u'; ++c) {
    r.rewards.emplace_back(std::string(4096, c), 1.0);
  }
  const std::vector<FlatRollout> batch{flatten_rollout(r, wide)};
  const auto back = read_rollouts(batch, wide);
  REQUIRE(back.ok());
  CHECK(back.value() == std::vector{r});
}

}  // namespace
}  // namespace ringside::bridge
