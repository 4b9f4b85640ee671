#include "rollout_bridge/protocol/wire.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "rollout_bridge/base/content_hash.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {
namespace {

constexpr std::array<const char*, 19> kTypeNames = {
    "HELLO",         "WELCOME",       "READY", "CREDIT", "ROLLOUT",      "ACK",    "HEARTBEAT",
    "WEIGHTS_OFFER", "CHUNK_REQUEST", "CHUNK", "STAGED", "STAGE_FAILED", "COMMIT", "COMMITTED",
    "BYE",           "END",           "ERROR", "IMAGE",  "IMAGE_ACK"};
constexpr std::size_t kMaxDepth = 8;
constexpr uint64_t kNotStated = 0;  // xxh3 of a CHUNK's data, which the tensor's hash covers

struct HeaderWire {
  int64_t v = 0;
  std::string type, run_id;
  int64_t trainer_term = -1;
  std::string worker_id;
  uint64_t incarnation = 0, seq = 0;
  std::vector<FrameSpec> frames;
  msgpack::object body;
  MSGPACK_DEFINE_MAP(v, type, run_id, trainer_term, worker_id, incarnation, seq, frames, body);
};

std::optional<MessageType> type_from_name(const std::string& name) {
  for (std::size_t i = 0; i < kTypeNames.size(); ++i) {
    if (name == kTypeNames[i]) {
      return static_cast<MessageType>(i);
    }
  }
  return std::nullopt;
}

Result<msgpack::object_handle> unpack_map(Frame frame, const Limits& limits) {
  if (frame.empty() || frame.size() > limits.max_header_bytes) {
    return Error{Reason::kLimit, "frame 0 has " + std::to_string(frame.size()) +
                                     " bytes, expected 1 to " +
                                     std::to_string(limits.max_header_bytes)};
  }
  // msgpack-c allocates an array before it reads the items. Without limits, five bytes could
  // request gigabytes.
  const msgpack::unpack_limit unpack_limit(limits.max_list_items, limits.max_list_items,
                                           limits.max_string_bytes, limits.max_string_bytes, 0,
                                           kMaxDepth);
  try {
    std::size_t offset = 0;
    auto handle = msgpack::unpack(reinterpret_cast<const char*>(frame.data()), frame.size(), offset,
                                  nullptr, nullptr, unpack_limit);
    if (offset != frame.size()) {
      return Error{Reason::kMalformed, "frame 0: map ends at byte " + std::to_string(offset) +
                                           " of " + std::to_string(frame.size())};
    }
    if (handle.get().type != msgpack::type::MAP) {
      return Error{Reason::kMalformed, "frame 0 is not a msgpack map"};
    }
    return handle;
  } catch (const msgpack::size_overflow& e) {
    return Error{Reason::kLimit, std::string("frame 0: ") + e.what()};
  } catch (const msgpack::unpack_error& e) {
    return Error{Reason::kMalformed, std::string("frame 0: ") + e.what()};
  }
}

Status check_frame(const FrameSpec& spec, Frame frame, const Limits& limits, bool may_lack_hash) {
  const auto bad = [&](Reason reason, const std::string& what) {
    return Error{reason, "frame '" + spec.name + "': " + what};
  };
  if (spec.bytes != frame.size()) {
    return bad(Reason::kFrames, "header says " + std::to_string(spec.bytes) + " bytes, received " +
                                    std::to_string(frame.size()));
  }
  if (spec.bytes > limits.max_frame_bytes) {
    return bad(Reason::kLimit, std::to_string(spec.bytes) + " bytes, limit " +
                                   std::to_string(limits.max_frame_bytes));
  }
  const uint64_t element = dtype_size(spec.dtype);
  if (element == 0) {
    return bad(Reason::kFrames, "unknown dtype '" + spec.dtype + "'");
  }
  if (spec.shape.size() > limits.max_dims) {
    return bad(Reason::kFrames, std::to_string(spec.shape.size()) + " dims, limit " +
                                    std::to_string(limits.max_dims));
  }
  uint64_t product = element;
  for (const int64_t extent : spec.shape) {
    if (extent < 0 || __builtin_mul_overflow(product, static_cast<uint64_t>(extent), &product)) {
      return bad(Reason::kFrames, "shape with extent " + std::to_string(extent));
    }
  }
  if (product != spec.bytes) {
    return bad(Reason::kFrames, "shape and dtype " + spec.dtype + " make " +
                                    std::to_string(product) + " bytes, header says " +
                                    std::to_string(spec.bytes));
  }
  if (!(spec.xxh3 == kNotStated && may_lack_hash) && hash64(frame) != spec.xxh3) {
    return bad(Reason::kChecksum, "bytes do not match their xxh3");
  }
  return Success{};
}

Status check_frames(const std::vector<FrameSpec>& specs, std::span<const Frame> frames,
                    const Limits& limits, bool may_lack_hash) {
  if (specs.size() != frames.size() || specs.size() > limits.max_frames) {
    return Error{Reason::kFrames, "header lists " + std::to_string(specs.size()) +
                                      " frames, received " + std::to_string(frames.size()) +
                                      ", limit " + std::to_string(limits.max_frames)};
  }
  uint64_t total = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (Status s = check_frame(specs[i], frames[i], limits, may_lack_hash); !s) {
      return s;
    }
    total += specs[i].bytes;
    for (std::size_t j = 0; j < i; ++j) {
      if (specs[i].name == specs[j].name) {
        return Error{Reason::kFrames, "two frames are named '" + specs[i].name + "'"};
      }
    }
  }
  if (total > limits.max_message_bytes) {
    return Error{Reason::kLimit, "message of " + std::to_string(total) + " bytes, limit " +
                                     std::to_string(limits.max_message_bytes)};
  }
  return Success{};
}

std::vector<uint8_t> joined(Frame header, std::span<const Frame> frames) {
  const auto header_bytes = static_cast<uint32_t>(header.size());
  std::size_t total = sizeof header_bytes + header.size();
  for (const Frame& frame : frames) {
    total += frame.size();
  }
  std::vector<uint8_t> out(total);
  uint8_t* at = out.data();
  const auto put = [&](const void* data, std::size_t bytes) {
    if (bytes > 0) {
      std::memcpy(at, data, bytes);
    }
    at += bytes;
  };
  put(&header_bytes, sizeof header_bytes);
  put(header.data(), header.size());
  for (const Frame& frame : frames) {
    put(frame.data(), frame.size());
  }
  return out;
}

}  // namespace

const char* message_type_name(MessageType type) {
  return kTypeNames[static_cast<std::size_t>(type)];
}

uint64_t Payload::buffer_bytes() const {
  uint64_t total = 0;
  for (const Buffer& buffer : buffers) {
    total += buffer.bytes.size();
  }
  return total;
}

void Payload::add(std::string name, std::string dtype, std::vector<int64_t> shape, Buffer buffer) {
  const uint64_t hash = hash64(buffer.bytes);
  specs.push_back({std::move(name), std::move(dtype), std::move(shape), buffer.bytes.size(), hash});
  buffers.push_back(std::move(buffer));
}

void Payload::add_unhashed(std::string name, std::string dtype, std::vector<int64_t> shape,
                           Buffer buffer) {
  specs.push_back(
      {std::move(name), std::move(dtype), std::move(shape), buffer.bytes.size(), kNotStated});
  buffers.push_back(std::move(buffer));
}

std::string pack_header(const Header& header, const Payload& payload, const Limits& limits) {
  msgpack::sbuffer out;
  msgpack::packer<msgpack::sbuffer> packer(out);
  packer.pack_map(9);
  const auto field = [&](const char* name, const auto& value) {
    packer.pack(name);
    packer.pack(value);
  };
  field("v", kProtoVersion);
  field("type", message_type_name(payload.type));
  field("run_id", header.run_id);
  field("trainer_term", header.trainer_term);
  field("worker_id", header.worker_id);
  field("incarnation", header.incarnation);
  field("seq", header.seq);
  field("frames", payload.specs);
  packer.pack("body");
  out.write(payload.body.data(), payload.body.size());  // the body is msgpack already
  if (out.size() > limits.max_header_bytes) {
    throw std::length_error(std::string("frame 0 of ") + message_type_name(payload.type) + " has " +
                            std::to_string(out.size()) + " bytes, limit " +
                            std::to_string(limits.max_header_bytes));
  }
  return std::string(out.data(), out.size());
}

int Message::find(const std::string& name) const {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].name == name) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

Result<Message> parse_message(std::span<const Frame> frames, const Limits& limits) {
  if (frames.empty()) {
    return Error{Reason::kFrames, "a message without frames"};
  }
  auto handle = unpack_map(frames[0], limits);
  if (!handle) {
    return handle.error();
  }
  Message message;
  message.handle_ = std::move(handle).value();
  HeaderWire wire;
  try {
    message.handle_.get().convert(wire);
  } catch (const msgpack::type_error&) {
    return Error{Reason::kMalformed, "frame 0: a field has the wrong type"};
  }
  if (wire.v != kProtoVersion) {
    return Error{Reason::kUnsupported, "protocol version " + std::to_string(wire.v) +
                                           ", expected " + std::to_string(kProtoVersion)};
  }
  const auto type = type_from_name(wire.type);
  if (!type) {
    return Error{Reason::kMalformed, "unknown message type '" + wire.type + "'"};
  }
  if (wire.body.type != msgpack::type::MAP) {
    return Error{Reason::kMalformed, "body of " + wire.type + " is not a map"};
  }
  if (Status s = check_frames(wire.frames, frames.subspan(1), limits, *type == MessageType::kChunk);
      !s) {
    return s.error();
  }
  message.header_ = {*type,          wire.run_id,      wire.trainer_term,
                     wire.worker_id, wire.incarnation, wire.seq};
  message.first_ = frames[0];
  message.specs_ = std::move(wire.frames);
  message.frames_.assign(frames.begin() + 1, frames.end());
  message.body_ = wire.body;
  return message;
}

std::vector<uint8_t> flatten(const std::string& header, const Payload& payload) {
  std::vector<Frame> frames;
  for (const Buffer& buffer : payload.buffers) {
    frames.push_back(buffer.bytes);
  }
  return joined(std::as_bytes(std::span(header)), frames);
}

std::vector<uint8_t> Message::flat() const { return joined(first_, frames_); }

Result<Message> parse_flat(Frame bytes, const Limits& limits) {
  uint32_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) {
    return Error{Reason::kMalformed, "flat message of " + std::to_string(bytes.size()) + " bytes"};
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  bytes = bytes.subspan(sizeof header_bytes);
  if (header_bytes > bytes.size()) {
    return Error{Reason::kMalformed, "flat message: header of " + std::to_string(header_bytes) +
                                         " bytes, " + std::to_string(bytes.size()) + " left"};
  }
  std::vector<Frame> frames = {bytes.first(header_bytes)};
  bytes = bytes.subspan(header_bytes);
  auto handle = unpack_map(frames[0], limits);
  if (!handle) {
    return handle.error();
  }
  HeaderWire wire;
  try {
    handle.value().get().convert(wire);
  } catch (const msgpack::type_error&) {
    return Error{Reason::kMalformed, "frame 0: a field has the wrong type"};
  }
  for (const FrameSpec& spec : wire.frames) {
    if (spec.bytes > bytes.size()) {
      return Error{Reason::kFrames, "flat message: frame '" + spec.name + "' of " +
                                        std::to_string(spec.bytes) + " bytes, " +
                                        std::to_string(bytes.size()) + " left"};
    }
    frames.push_back(bytes.first(spec.bytes));
    bytes = bytes.subspan(spec.bytes);
  }
  if (!bytes.empty()) {
    return Error{Reason::kMalformed,
                 "flat message: " + std::to_string(bytes.size()) + " bytes after the last frame"};
  }
  return parse_message(frames, limits);
}

}  // namespace ringside::bridge
