// Wire format of messages: frame 0 is a msgpack map, frames 1..n are the raw little-endian buffers
// that it lists. PROTOCOL.md is the reference. No sockets here.
#pragma once

#include <cstdint>
#include <msgpack.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rollout_bridge/base/buffer.h"
#include "rollout_bridge/base/limits.h"
#include "rollout_bridge/base/result.h"

namespace ringside::bridge {

inline constexpr int kProtoVersion = 4;

// Thrown while a body is read: the field has the right type, and a text that no message may hold.
class InvalidText : public msgpack::type_error {
 public:
  explicit InvalidText(std::string what) : what_(std::move(what)) {}  // names field and text
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

enum class MessageType {
  kHello,
  kWelcome,
  kReady,
  kCredit,
  kRollout,
  kAck,
  kHeartbeat,
  kWeightsOffer,
  kChunkRequest,
  kChunk,
  kStaged,
  kStageFailed,
  kCommit,
  kCommitted,
  kBye,
  kEnd,
  kError,
  kImage,
  kImageAck,
};
// The wire name, e.g. "WEIGHTS_OFFER".
const char* message_type_name(MessageType type);

struct FrameSpec {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  uint64_t xxh3 = 0;  // XXH3-64, seed 0; in a CHUNK 0: not stated
  MSGPACK_DEFINE_MAP(name, dtype, shape, bytes, xxh3);
};

// Sender and position in the session. The rest of frame 0 is the frame list and the body.
struct Header {
  MessageType type = MessageType::kError;
  std::string run_id;
  int64_t trainer_term = -1;
  std::string worker_id;
  uint64_t incarnation = 0;
  uint64_t seq = 0;  // 1, 2, 3... per direction of a session; 0 outside a session
};

// A message without its header: the packed body map and the buffers with their descriptions.
struct Payload {
  MessageType type = MessageType::kError;
  std::string body;
  std::vector<FrameSpec> specs;
  std::vector<Buffer> buffers;

  // Bytes of all buffers.
  uint64_t buffer_bytes() const;
  // Appends a buffer of `bytes.size()` bytes that is `shape` elements of `dtype`, and hashes it.
  void add(std::string name, std::string dtype, std::vector<int64_t> shape, Buffer buffer);
  // add() without the hash, for the data of a CHUNK, which its tensor's hash covers. In any other
  // message the receiver treats such a buffer as damaged.
  void add_unhashed(std::string name, std::string dtype, std::vector<int64_t> shape, Buffer buffer);
};

// A message without buffers, whose body is packed by msgpack.
template <class Body>
Payload make_payload(MessageType type, const Body& body) {
  msgpack::sbuffer packed;
  msgpack::pack(packed, body);
  return Payload{type, std::string(packed.data(), packed.size()), {}, {}};
}

// Frame 0 for a payload; header.type is taken from the payload.
// Throws: std::length_error when a receiver with these limits would refuse it.
std::string pack_header(const Header& header, const Payload& payload, const Limits& limits = {});

using Frame = std::span<const std::byte>;

// A received message that passed every check of parse_message. Frames point into the bytes given to
// parse_message, which must outlive it.
class Message {
 public:
  const Header& header() const { return header_; }
  const std::vector<FrameSpec>& specs() const { return specs_; }
  // Index of a named frame, or -1.
  int find(const std::string& name) const;
  Frame frame(int index) const { return frames_[static_cast<std::size_t>(index)]; }
  // The received message as one run of bytes, as parse_flat() reads it.
  std::vector<uint8_t> flat() const;

  // The body as its type of messages.h. Missing fields keep the type's defaults; unknown fields are
  // ignored.
  // Errors: kMalformed when a field has another type; kInvalidField as InvalidText.
  template <class Body>
  Result<Body> body() const {
    try {
      return body_.as<Body>();
    } catch (const InvalidText& error) {
      return Error{Reason::kInvalidField, error.what()};
    } catch (const msgpack::type_error&) {
      return Error{Reason::kMalformed, std::string("body of ") + message_type_name(header_.type) +
                                           ": a field is missing or has the wrong type"};
    }
  }

  // One field of a body that may be invalid otherwise; nullopt when the field is absent or has
  // another type.
  template <class T>
  std::optional<T> field(std::string_view name) const {
    for (const msgpack::object_kv& item : std::span(body_.via.map.ptr, body_.via.map.size)) {
      try {
        if (item.key.as<std::string_view>() == name) {
          return item.val.as<T>();
        }
      } catch (const msgpack::type_error&) {
        continue;
      }
    }
    return std::nullopt;
  }

 private:
  friend Result<Message> parse_message(std::span<const Frame>, const Limits&);
  Header header_;
  Frame first_;  // frame 0
  std::vector<FrameSpec> specs_;
  std::vector<Frame> frames_;
  msgpack::object_handle handle_;
  msgpack::object body_;
};

// Checks frame 0 against the limits before unpacking it, then count, names, dtype, shape, bytes and
// hash of every other frame. Never throws on bad bytes.
// Errors: kMalformed, kUnsupported (another protocol version, and nothing else), kLimit, kFrames,
// kChecksum.
// Thread safety: pure.
Result<Message> parse_message(std::span<const Frame> frames, const Limits& limits);

// A message as one run of bytes, for files and collectives: u32 length of the header, header,
// buffers.
std::vector<uint8_t> flatten(const std::string& header, const Payload& payload);
// The inverse of flatten(). `bytes` must hold exactly one message and outlive it.
// Errors: as parse_message().
// Thread safety: pure.
Result<Message> parse_flat(Frame bytes, const Limits& limits);

}  // namespace ringside::bridge
