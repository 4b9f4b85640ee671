#include "tools/bench/frames/messages.h"

#include <functional>
#include <limits>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/protocol/messages.h"

namespace ringside::bench {
namespace {

using namespace bridge;

constexpr int kTypes = 17;
constexpr int64_t kFarGroup = 1'000'000'000;  // no run of the bench grants it

// Every value inside a map, in depth-first order.
void collect(msgpack::object& node, std::vector<msgpack::object*>& out) {
  out.push_back(&node);
  if (node.type == msgpack::type::ARRAY) {
    for (uint32_t i = 0; i < node.via.array.size; ++i) collect(node.via.array.ptr[i], out);
  } else if (node.type == msgpack::type::MAP) {
    for (uint32_t i = 0; i < node.via.map.size; ++i) collect(node.via.map.ptr[i].val, out);
  }
}

Rollout some_rollout(std::mt19937& rng) {
  Rollout r;
  r.rollout_id = "hostile-" + std::to_string(rng());
  r.attempt = 0;
  r.group_id = kFarGroup + static_cast<int64_t>(rng() % 1000);
  r.group_size = 4;
  r.sample_index = static_cast<int32_t>(rng() % 4);
  r.prompt_id = "p";
  const int length = 1 + static_cast<int>(rng() % 30);
  for (int i = 0; i < length; ++i) {
    r.prompt_ids.push_back(static_cast<int32_t>(rng() % 1000));
    r.completion_ids.push_back(static_cast<int32_t>(rng() % 1000));
    r.logprobs.push_back(-0.5F);
  }
  r.temperature = r.top_p = 1.0F;
  r.top_k = 0;
  r.versions = {{0, 0, length}};
  r.trainer_term = 1;
  r.finish_reason = FinishReason::kStop;
  r.rewards = {{"reward", 1e6}};
  if (length > 6) r.branches = {{2, 1}, {4, 0}};
  return r;
}

Frame as_frame(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

const char* damage_name(Damage damage) {
  constexpr const char* kNames[kDamages] = {"none", "node", "bytes", "cut", "buffers", "noise"};
  return kNames[static_cast<int>(damage)];
}

Verdict judge(const Frames& frames) {
  std::vector<Frame> spans;
  for (const std::string& frame : frames) spans.push_back(as_frame(frame));
  const auto message = parse_message(spans, {});
  if (message) return {true, true, message.value().header().seq};
  // Without its buffers, a header that lists some fails at their number, which is checked last.
  const auto alone = parse_message(std::span(spans).first(1), {});
  return {alone.ok() || alone.error().reason == Reason::kFrames, false, 0};
}

MessageMaker::MessageMaker(Target target, uint32_t seed) : target_(std::move(target)), rng_(seed) {}

Frames MessageMaker::hello(const std::string& worker_id, uint64_t incarnation) const {
  HelloBody body;
  body.capacity_samples = 8;
  body.client = "bench_frames";
  const Payload payload = make_payload(MessageType::kHello, body);
  return {pack_header({payload.type, "", -1, worker_id, incarnation, 1}, payload)};
}

int64_t MessageMaker::odd_number() {
  constexpr int64_t kOdd[] = {0,
                              1,
                              -1,
                              2,
                              127,
                              128,
                              255,
                              65536,
                              int64_t{1} << 31,
                              int64_t{1} << 40,
                              std::numeric_limits<int64_t>::max(),
                              std::numeric_limits<int64_t>::min()};
  return kOdd[draw(std::size(kOdd))];
}

Payload MessageMaker::payload_of(MessageType type) {
  const std::string root(32, 'a');
  const auto version = static_cast<int64_t>(draw(3));
  switch (type) {
    case MessageType::kHello: {
      HelloBody body;
      body.capacity_samples = 4;
      return make_payload(type, body);
    }
    case MessageType::kWelcome:
      return make_payload(type, WelcomeBody{"tcp://127.0.0.1:1", 1, root, 1000, 9000, 1, 1});
    case MessageType::kReady:
      return make_payload(type, ReadyBody{version});
    case MessageType::kCredit: {
      CreditBody body;
      body.groups = {{kFarGroup, 2, 1, 0, {0, 1}}};
      return make_payload(type, body);
    }
    case MessageType::kRollout:
      return encode_rollout(some_rollout(rng_));
    case MessageType::kAck: {
      AckBody body;
      body.status = "ACCEPTED";
      return make_payload(type, body);
    }
    case MessageType::kHeartbeat: {
      HeartbeatBody body;
      body.state = "ready";
      return make_payload(type, body);
    }
    case MessageType::kStaged:
      return make_payload(type, StagedBody{version, root, "overwrite", 1});
    case MessageType::kStageFailed:
      return make_payload(type, StageFailedBody{version, "no"});
    case MessageType::kChunkRequest:
      return make_payload(type, ChunkBody{version, draw(3), draw(64), 1 + draw(4096), -1});
    case MessageType::kWeightsOffer:
    case MessageType::kCommit:
    case MessageType::kCommitted:
      return make_payload(type, WeightsBody{version, root});
    case MessageType::kChunk: {
      Payload payload = make_payload(type, ChunkBody{version, 0, 0, 8, -1});
      payload.add("data", "U8", {8}, Buffer::own(std::vector<uint8_t>(8, 7)));
      return payload;
    }
    case MessageType::kError:
      return make_payload(type, ErrorBody{"gone", "x", true, -1});
    default:
      return make_payload(type, EndBody{"x"});
  }
}

Frames MessageMaker::next(const std::string& worker_id, uint64_t incarnation, uint64_t seq,
                          Damage& damage) {
  const Payload payload = payload_of(static_cast<MessageType>(draw(kTypes)));
  const Header header{payload.type, target_.run_id, target_.trainer_term,
                      worker_id,    incarnation,    seq};
  Frames frames = {pack_header(header, payload)};
  for (const Buffer& buffer : payload.buffers) {
    frames.emplace_back(reinterpret_cast<const char*>(buffer.bytes.data()), buffer.bytes.size());
  }
  // Half of the damage is structural: damage to bytes rarely passes the parser and reaches the
  // state.
  constexpr Damage kMix[] = {Damage::kNone, Damage::kNode,    Damage::kNode,
                             Damage::kNode, Damage::kNode,    Damage::kBytes,
                             Damage::kCut,  Damage::kBuffers, Damage::kNoise};
  damage = kMix[draw(std::size(kMix))];
  switch (damage) {
    case Damage::kNone:
      break;
    case Damage::kNode:
      for (uint32_t i = 1 + draw(3); i > 0; --i) damage_node(frames[0]);
      break;
    case Damage::kBytes:
      damage_bytes(frames[0]);
      break;
    case Damage::kCut:
      cut(frames[0]);
      break;
    case Damage::kBuffers:
      damage_buffers(frames);
      break;
    case Damage::kNoise:
      frames = {noise()};
      break;
  }
  return frames;
}

void MessageMaker::damage_node(std::string& head) {
  auto handle = msgpack::unpack(head.data(), head.size());
  msgpack::object root = handle.get();
  std::vector<msgpack::object*> nodes;
  collect(root, nodes);
  const uint32_t which = 1 + draw(static_cast<uint32_t>(nodes.size()) - 1);
  msgpack::object& node = *nodes[which];
  msgpack::zone& zone = *handle.zone();
  switch (draw(7)) {
    case 0:
      node = msgpack::object(std::string(draw(200), 'x'), zone);
      break;
    case 1:
      node = msgpack::object();
      break;
    case 2:
      node = msgpack::object(std::numeric_limits<double>::quiet_NaN());
      break;
    case 3:
      node = msgpack::object(std::vector<int64_t>(draw(64), odd_number()), zone);
      break;
    case 4:  // another value of it; one that comes later, or it would hold itself
      node = *nodes[which + draw(static_cast<uint32_t>(nodes.size()) - which)];
      break;
    default:
      node = msgpack::object(odd_number());
  }
  msgpack::sbuffer packed;
  msgpack::pack(packed, root);
  head.assign(packed.data(), packed.size());
}

void MessageMaker::damage_bytes(std::string& bytes) {
  for (uint32_t i = 1 + draw(4); i > 0 && !bytes.empty(); --i) {
    bytes[draw(static_cast<uint32_t>(bytes.size()))] = static_cast<char>(rng_());
  }
}

void MessageMaker::cut(std::string& bytes) {
  if (draw(2) == 0) {
    bytes.resize(draw(static_cast<uint32_t>(bytes.size())));
  } else {
    bytes.append(1 + draw(16), static_cast<char>(rng_()));
  }
}

void MessageMaker::damage_buffers(Frames& frames) {
  switch (frames.size() == 1 ? 0 : draw(4)) {
    case 0:
      frames.insert(frames.end(), 1 + draw(20), std::string(draw(64), 'b'));
      break;
    case 1:
      damage_bytes(frames[1 + draw(static_cast<uint32_t>(frames.size()) - 1)]);
      break;
    case 2:
      cut(frames[1 + draw(static_cast<uint32_t>(frames.size()) - 1)]);
      break;
    default:
      frames.pop_back();
  }
}

std::string MessageMaker::noise() {
  switch (draw(4)) {
    case 0:
      return "\xdf\xff\xff\xff\xff";  // a map of 2^32 - 1 entries
    case 1:
      return std::string(1 + draw(1000), '\x91');  // arrays in arrays
    case 2:
      return std::string("\x81\xa4", 2) + "body" + "\xdd\xff\xff\xff\xf0";
    default: {
      std::string out(draw(300), '\0');
      for (char& c : out) c = static_cast<char>(rng_());
      return out;
    }
  }
}

}  // namespace ringside::bench
