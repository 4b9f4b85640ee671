#include "tests/fuzz/entries.h"

#include <xxhash.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "rollout_bridge/protocol/branches.h"
#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/weights/manifest_codec.h"
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::bridge::fuzz {
namespace {

// Small enough that an input beyond them is a short one.
Limits limits() {
  Limits out;
  out.max_header_bytes = 8 * 1024;
  out.max_frame_bytes = 64 * 1024;
  out.max_tokens = 4096;
  out.max_turns = 64;
  out.max_branches = 64;
  out.max_experts_per_token = 16;
  out.max_images = 16;
  out.max_image_side = 256;
  out.max_image_bytes = 16 * 1024;
  out.max_rollout_image_bytes = 32 * 1024;
  return out;
}

template <class... Bodies>
void read_bodies(const Message& message) {
  ((void)message.body<Bodies>().ok(), ...);
}

void read_everything(const Message& message) {
  require(message.specs().size() <= limits().max_frames);
  for (std::size_t i = 0; i < message.specs().size(); ++i) {
    const FrameSpec& spec = message.specs()[i];
    const Frame frame = message.frame(static_cast<int>(i));
    require(spec.bytes == frame.size() && frame.size() <= limits().max_frame_bytes);
    const bool may_lack_hash = message.header().type == MessageType::kChunk && spec.xxh3 == 0;
    require(may_lack_hash || XXH3_64bits(frame.data(), frame.size()) == spec.xxh3);
    require(message.find(spec.name) == static_cast<int>(i));
  }
  read_bodies<HelloBody, WelcomeBody, ReadyBody, CreditBody, Rollout, AckBody, ImageBody,
              ImageAckBody, HeartbeatBody, WeightsBody, OfferBody, StageFailedBody, ChunkBody,
              EndBody, ErrorBody>(message);
}

std::span<const std::byte> as_frame(std::span<const uint8_t> bytes) { return std::as_bytes(bytes); }

uint32_t header_size(std::span<const uint8_t> bytes) {
  uint32_t size = 0;
  if (bytes.size() >= sizeof size) {
    std::memcpy(&size, bytes.data(), sizeof size);
  }
  return size;
}

// The wire form of frame 0, to write it again.
struct HeaderForm {
  int64_t v = 0;
  std::string type, run_id;
  int64_t trainer_term = -1;
  std::string worker_id;
  uint64_t incarnation = 0, seq = 0;
  std::vector<FrameSpec> frames;
  msgpack::object body;
  MSGPACK_DEFINE_MAP(v, type, run_id, trainer_term, worker_id, incarnation, seq, frames, body);
};

uint64_t elements(const FrameSpec& spec, uint64_t room) {
  uint64_t count = dtype_size(spec.dtype);
  for (const int64_t extent : spec.shape) {
    if (extent < 0 || static_cast<uint64_t>(extent) > room) {
      return 0;
    }
    count *= static_cast<uint64_t>(extent);
    if (count > room) {
      return 0;
    }
  }
  return count > room ? 0 : count;  // a scalar has no extent to look at
}

// Sets type, bytes and hashes in frame 0 to what the buffers are; empty when it is beyond repair.
std::vector<uint8_t> repaired(std::span<const uint8_t> bytes, MessageType type) {
  const uint32_t size = header_size(bytes);
  if (bytes.size() < sizeof size || size > bytes.size() - sizeof size) {
    return {};
  }
  const auto head = bytes.subspan(sizeof size, size);
  std::span<const uint8_t> rest = bytes.subspan(sizeof size + size);
  HeaderForm form;
  msgpack::object_handle handle;
  try {
    const msgpack::unpack_limit bound(1024, 1024, 4096, 4096, 0, 8);
    handle = msgpack::unpack(reinterpret_cast<const char*>(head.data()), head.size(), nullptr,
                             nullptr, bound);
    handle.get().convert(form);
  } catch (const std::exception&) {
    return {};
  }
  form.v = kProtoVersion;
  form.type = message_type_name(type);
  std::vector<uint8_t> buffers;
  for (FrameSpec& spec : form.frames) {
    spec.bytes = elements(spec, rest.size());
    const auto part = rest.first(spec.bytes);
    spec.xxh3 = XXH3_64bits(part.data(), part.size());
    buffers.insert(buffers.end(), part.begin(), part.end());
    rest = rest.subspan(spec.bytes);
  }
  msgpack::sbuffer packed;
  msgpack::pack(packed, form);
  const auto new_size = static_cast<uint32_t>(packed.size());
  std::vector<uint8_t> out(sizeof new_size);
  std::memcpy(out.data(), &new_size, sizeof new_size);
  out.insert(out.end(), packed.data(), packed.data() + packed.size());
  out.insert(out.end(), buffers.begin(), buffers.end());
  return out;
}

void check_rollout(const Rollout& rollout) {
  require(validate(rollout, limits()).ok());
  require(!branch_paths(rollout).empty());
  FlatRollout flat;
  try {
    flat = flatten_rollout(rollout, limits());
  } catch (const std::invalid_argument&) {
    return;  // its rewards and names leave no room for the other fields of frame 0
  }
  const auto back = read_rollouts(std::span(&flat, 1), limits());
  require(back.ok() && back.value().size() == 1 && back.value()[0] == rollout);
}

void decode_as_batch(std::span<const uint8_t> bytes) {
  std::vector<uint8_t> hashed(bytes.begin(), bytes.end());
  const uint64_t hash = XXH3_64bits(hashed.data(), hashed.size());
  const auto* raw = reinterpret_cast<const uint8_t*>(&hash);
  hashed.insert(hashed.end(), raw, raw + sizeof hash);
  const auto messages = split_messages(hashed);
  if (!messages) {
    return;
  }
  const auto rollouts = read_rollouts(messages.value(), limits());
  if (!rollouts) {
    return;
  }
  for (const Rollout& rollout : rollouts.value()) {
    if (validate(rollout, limits())) {
      check_rollout(rollout);
    }
  }
}

}  // namespace

void wire(std::span<const uint8_t> bytes) {
  if (const auto message = parse_flat(as_frame(bytes), limits())) {
    read_everything(message.value());
  }
  // As a socket delivers it: frame 0 alone, and with the rest in one piece.
  if (bytes.size() < sizeof(uint32_t)) {
    return;
  }
  const auto after = bytes.subspan(sizeof(uint32_t));
  const std::size_t size = std::min<std::size_t>(header_size(bytes), after.size());
  const Frame frames[] = {as_frame(after.first(size)), as_frame(after.subspan(size))};
  for (const std::size_t count : {1, 2}) {
    const auto message = parse_message(std::span(frames, count), limits());
    if (message) {
      read_everything(message.value());
    }
  }
}

void codec(std::span<const uint8_t> bytes) {
  decode_as_batch(bytes);
  const std::vector<uint8_t> flat = repaired(bytes, MessageType::kRollout);
  if (flat.empty()) {
    return;
  }
  const auto message = parse_flat(as_frame(flat), limits());
  if (!message) {
    return;
  }
  const auto rollout = decode_rollout(message.value(), limits());
  if (rollout) {
    check_rollout(rollout.value());
  }
}

namespace {

// An image that a message brings, and what the journal and the other ranks read of it.
void check_image(const ImageHead& head, std::span<const uint8_t> flat) {
  require(validate(head, limits()).ok());
  const FlatImage message(flat.begin(), flat.end());
  const auto batch = read_batch(std::span(&message, 1), limits());
  require(batch.ok() && batch.value().rollouts.empty() && batch.value().images.size() == 1);
  const Image& image = batch.value().images[0];
  require(image.head == head && image.rgb.bytes.size() == head.bytes());
  require(image_hash(head.height, head.width, image.rgb.bytes) == head.hash);
}

}  // namespace

void image_message(std::span<const uint8_t> bytes) {
  const std::vector<uint8_t> flat = repaired(bytes, MessageType::kImage);
  if (flat.empty()) {
    return;
  }
  const auto message = parse_flat(as_frame(flat), limits());
  if (!message) {
    return;
  }
  if (const auto head = read_image_head(message.value(), limits())) {
    check_image(head.value(), flat);
  }
  // With the hash that its pixels have.
  auto image = decode_image(message.value(), limits());
  if (!image) {
    return;
  }
  const ImageHead& said = image.value().head;
  const Image right = make_image(said.height, said.width, image.value().rgb);
  const Payload payload = encode_image(right);
  const std::vector<uint8_t> again = flatten(pack_header(Header{}, payload, limits()), payload);
  const auto back = parse_flat(as_frame(again), limits());
  require(back.ok());
  const auto head = read_image_head(back.value(), limits());
  require(head.ok() && head.value() == right.head);
  check_image(head.value(), again);
}

namespace {

void check_manifest(std::span<const uint8_t> bytes) {
  const auto decoded = decode_manifest(as_frame(bytes));
  if (!decoded) {
    return;
  }
  require(validate(decoded.value()).ok());
  const std::vector<uint8_t> packed = encode_manifest(decoded.value());
  const auto back = decode_manifest(as_frame(packed));
  require(back.ok() && back.value() == decoded.value());
}

}  // namespace

void manifest(std::span<const uint8_t> bytes) {
  check_manifest(bytes);
  Manifest body;
  try {
    const msgpack::unpack_limit bound(1024, 64, 4096, 0, 0, 8);
    msgpack::unpack(reinterpret_cast<const char*>(bytes.data()), bytes.size(), nullptr, nullptr,
                    bound)
        .get()
        .convert(body);
  } catch (const std::exception&) {
    return;
  }
  std::vector<TensorEntry> tensors;
  for (const TensorEntry& t : body.tensors) {
    TensorEntry entry;
    entry.name = t.name;
    entry.dtype = t.dtype;
    entry.shape = t.shape;
    entry.xxh3 = t.xxh3;
    tensors.push_back(std::move(entry));
  }
  body.root_hash = root_hash(tensors);
  msgpack::sbuffer packed;
  msgpack::pack(packed, body);
  check_manifest({reinterpret_cast<const uint8_t*>(packed.data()), packed.size()});
}

}  // namespace ringside::bridge::fuzz
