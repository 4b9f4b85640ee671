#include "rollout_bridge/protocol/codec.h"

#include <array>
#include <cstring>
#include <utility>

#include "rollout_bridge/base/content_hash.h"
#include "rollout_bridge/protocol/messages.h"

namespace ringside::bridge {
namespace {

// Without them a rollout would get the defaults of a C++ struct.
constexpr std::array kStatedFields = {"attempt", "temperature", "top_p", "top_k", "finish_reason"};

constexpr char kBatchMagic[8] = {'R', 'S', 'B', 'A', 'T', 'C', 'H', '1'};

constexpr int64_t kHashBytes = 16;   // of an image
constexpr int64_t kSpanNumbers = 4;  // begin, end, height, width

// 32 lower-case digits of 16 bytes, and back.
std::string hex_of(std::span<const uint8_t> bytes) {
  std::string digits;
  for (const uint8_t byte : bytes) {
    digits += "0123456789abcdef"[byte >> 4];
    digits += "0123456789abcdef"[byte & 15];
  }
  return digits;
}

void append_hex(const std::string& digits, std::vector<uint8_t>& bytes) {
  const auto value = [](char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; };
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(16 * value(digits[i]) + value(digits[i + 1])));
  }
}

std::vector<int32_t> narrow(const std::vector<int64_t>& ids) {
  return std::vector<int32_t>(ids.begin(), ids.end());
}

// Copies frame `name` of the given dtype into `out`. Leaves `out` empty when the frame is absent
// and not `required`.
template <class T, class Out>
Status read_frame(const Message& message, const char* name, const char* dtype, bool required,
                  int64_t columns, size_t max_items, std::vector<Out>& out) {
  const int index = message.find(name);
  if (index < 0) {
    if (!required) {
      return Success{};
    }
    return Error{Reason::kFrames, std::string("ROLLOUT lacks frame '") + name + "'"};
  }
  const FrameSpec& spec = message.specs()[static_cast<size_t>(index)];
  const bool shaped =
      columns == 1 ? spec.shape.size() == 1 : spec.shape.size() == 2 && spec.shape[1] == columns;
  if (spec.dtype != dtype || !shaped) {
    return Error{Reason::kFrames, std::string("frame '") + name + "': dtype " + spec.dtype +
                                      " with " + std::to_string(spec.shape.size()) +
                                      " dims, expected " + dtype + " [n" +
                                      (columns == 1 ? "]" : ", " + std::to_string(columns) + "]")};
  }
  const Frame frame = message.frame(index);
  const size_t items = frame.size() / sizeof(T);
  if (items > max_items) {
    return Error{Reason::kLimit, std::string("frame '") + name + "': " + std::to_string(items) +
                                     " items, limit " + std::to_string(max_items)};
  }
  // Frames may be unaligned.
  std::vector<T> raw(items);
  if (items > 0) {
    std::memcpy(raw.data(), frame.data(), frame.size());
  }
  out.assign(raw.begin(), raw.end());
  return Success{};
}

// The frames `routed_experts` [rows, layers, K] and `routed_layers`, which come together or not at
// all.
Status read_routed_experts(const Message& message, const Limits& limits, RoutedExperts& routed) {
  const int index = message.find("routed_experts");
  if (Status s = read_frame<int32_t>(message, "routed_layers", "I32", index >= 0, 1,
                                     limits.max_list_items, routed.layers);
      !s || index < 0) {
    return s;
  }
  const FrameSpec& spec = message.specs()[static_cast<size_t>(index)];
  const auto layers = static_cast<int64_t>(routed.layers.size());
  const bool fits = (spec.dtype == "U8" || spec.dtype == "I16") && spec.shape.size() == 3 &&
                    spec.shape[1] == layers && spec.shape[2] <= limits.max_experts_per_token;
  if (!fits) {
    return Error{Reason::kFrames, "frame 'routed_experts': dtype " + spec.dtype + " with " +
                                      std::to_string(spec.shape.size()) +
                                      " dims, expected U8 or I16 [rows, " + std::to_string(layers) +
                                      ", K] with K at most " +
                                      std::to_string(limits.max_experts_per_token)};
  }
  routed.per_token = static_cast<int32_t>(spec.shape[2]);
  routed.id_bytes = spec.dtype == "U8" ? 1 : 2;
  const Frame frame = message.frame(index);
  const auto* bytes = reinterpret_cast<const uint8_t*>(frame.data());
  routed.ids.assign(bytes, bytes + frame.size());
  return Success{};
}

void add_routed_experts(const RoutedExperts& routed, Payload& payload) {
  if (routed.empty()) {
    return;
  }
  const auto layers = static_cast<int64_t>(routed.layers.size());
  payload.add("routed_layers", "I32", {layers}, Buffer::own(routed.layers));
  payload.add("routed_experts", routed.id_bytes == 1 ? "U8" : "I16",
              {static_cast<int64_t>(routed.ids.size() / routed.row_bytes()), layers,
               int64_t{routed.per_token}},
              Buffer::own(routed.ids));
}

// The frames `image_hashes` [n, 16] and `image_spans` [n, 4], which come together or not at all.
Status read_images(const Message& message, const Limits& limits, Rollout& r) {
  const bool any = message.find("image_hashes") >= 0 || message.find("image_spans") >= 0;
  std::vector<uint8_t> hashes;
  if (Status s = read_frame<uint8_t>(message, "image_hashes", "U8", any, kHashBytes,
                                     kHashBytes * limits.max_images, hashes);
      !s) {
    return s;
  }
  std::vector<int64_t> spans;
  if (Status s = read_frame<int64_t>(message, "image_spans", "I64", any, kSpanNumbers,
                                     kSpanNumbers * limits.max_images, spans);
      !s) {
    return s;
  }
  const std::size_t count = hashes.size() / kHashBytes;
  if (spans.size() / kSpanNumbers != count) {
    return Error{Reason::kFrames,
                 "frames 'image_hashes' and 'image_spans' have " + std::to_string(count) + " and " +
                     std::to_string(spans.size() / kSpanNumbers) + " rows, expected equally many"};
  }
  for (std::size_t i = 0; i < count; ++i) {
    const int64_t* row = spans.data() + kSpanNumbers * i;
    r.images.push_back({hex_of(std::span(hashes).subspan(kHashBytes * i, kHashBytes)), row[2],
                        row[3], row[0], row[1]});
  }
  return Success{};
}

void add_images(const std::vector<ConversationImage>& images, Payload& payload) {
  if (images.empty()) {
    return;
  }
  std::vector<uint8_t> hashes;
  std::vector<int64_t> spans;
  for (const ConversationImage& image : images) {
    append_hex(image.hash, hashes);
    spans.insert(spans.end(), {image.begin, image.end, image.height, image.width});
  }
  const auto rows = static_cast<int64_t>(images.size());
  payload.add("image_hashes", "U8", {rows, kHashBytes}, Buffer::own(std::move(hashes)));
  payload.add("image_spans", "I64", {rows, kSpanNumbers}, Buffer::own(std::move(spans)));
}

Status read_frames(const Message& message, const Limits& limits, Rollout& r) {
  const size_t tokens = limits.max_tokens;
  if (Status s = read_frame<int32_t>(message, "prompt_ids", "I32", true, 1, tokens, r.prompt_ids);
      !s) {
    return s;
  }
  if (Status s =
          read_frame<int32_t>(message, "completion_ids", "I32", true, 1, tokens, r.completion_ids);
      !s) {
    return s;
  }
  if (Status s = read_frame<float>(message, "logprobs", "F32", true, 1, tokens, r.logprobs); !s) {
    return s;
  }
  if (Status s = read_frame<uint8_t>(message, "loss_mask", "U8", false, 1, tokens, r.loss_mask);
      !s) {
    return s;
  }
  if (Status s = read_frame<int32_t>(message, "turn_offsets", "I32", false, 1, limits.max_turns,
                                     r.turn_offsets);
      !s) {
    return s;
  }
  if (Status s = read_frame<double>(message, "turn_rewards", "F64", false, 1, limits.max_turns,
                                    r.turn_rewards);
      !s) {
    return s;
  }
  if (Status s = read_frame<float>(message, "advantages", "F32", false, 1, tokens, r.advantages);
      !s) {
    return s;
  }
  std::vector<int64_t> forks;
  if (Status s =
          read_frame<int64_t>(message, "branches", "I64", false, 2, 2 * limits.max_branches, forks);
      !s) {
    return s;
  }
  for (size_t i = 0; i + 1 < forks.size(); i += 2) {
    r.branches.push_back({forks[i], forks[i + 1]});
  }
  std::vector<int64_t> spans;
  if (Status s = read_frame<int64_t>(message, "versions", "I64", true, 3, 3 * limits.max_list_items,
                                     spans);
      !s) {
    return s;
  }
  for (size_t i = 0; i + 2 < spans.size(); i += 3) {
    r.versions.push_back({spans[i], spans[i + 1], spans[i + 2]});
  }
  if (Status s = read_images(message, limits, r); !s) {
    return s;
  }
  if (Status s =
          read_frame<int32_t>(message, "kept_counts", "I32", false, 1, tokens, r.kept_sets.counts);
      !s) {
    return s;
  }
  if (Status s = read_frame<int32_t>(message, "kept_ids", "I32", !r.kept_sets.empty(), 1,
                                     limits.max_frame_bytes / sizeof(int32_t), r.kept_sets.ids);
      !s) {
    return s;
  }
  return read_routed_experts(message, limits, r.routed_experts);
}

template <class T>
void append(std::vector<uint8_t>& out, const T& value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof value);
  std::memcpy(out.data() + at, &value, sizeof value);
}

uint64_t read_u64(std::span<const uint8_t> bytes) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// decode_rollout() without validate().
Result<Rollout> read_rollout(const Message& message, const Limits& limits) {
  if (message.header().type != MessageType::kRollout) {
    return Error{Reason::kMalformed,
                 std::string("expected ROLLOUT, got ") + message_type_name(message.header().type)};
  }
  auto rollout = message.body<Rollout>();
  if (!rollout) {
    return rollout;
  }
  for (const char* name : kStatedFields) {
    if (!message.field<msgpack::object>(name)) {
      return Error{Reason::kInvalidField,
                   "rollout '" + rollout.value().rollout_id + "' lacks the field " + name};
    }
  }
  if (Status s = read_frames(message, limits, rollout.value()); !s) {
    return s.error();
  }
  return rollout;
}

// Everything but that the pixels have the hash.
Result<ImageHead> stated_head(const Message& message, const Limits& limits) {
  if (message.header().type != MessageType::kImage) {
    return Error{Reason::kMalformed,
                 std::string("expected IMAGE, got ") + message_type_name(message.header().type)};
  }
  const auto body = message.body<ImageBody>();
  if (!body) {
    return body.error();
  }
  const int index = message.find("rgb");
  if (index < 0) {
    return Error{Reason::kFrames, "IMAGE lacks frame 'rgb'"};
  }
  const FrameSpec& spec = message.specs()[static_cast<std::size_t>(index)];
  if (spec.dtype != "U8" || spec.shape.size() != 3 || spec.shape[2] != 3) {
    return Error{Reason::kFrames, "frame 'rgb': dtype " + spec.dtype + " with " +
                                      std::to_string(spec.shape.size()) +
                                      " dims, expected U8 [height, width, 3]"};
  }
  const ImageHead head{body.value().hash, spec.shape[0], spec.shape[1]};
  if (Status s = validate(head, limits); !s) {
    return s.error();
  }
  return head;
}

Frame pixels_of(const Message& message) { return message.frame(message.find("rgb")); }

}  // namespace

Payload encode_rollout(const Rollout& r) {
  Payload payload = make_payload(MessageType::kRollout, r);
  const auto add = [&](const char* name, const char* dtype, auto values) {
    const auto count = static_cast<int64_t>(values.size());
    payload.add(name, dtype, {count}, Buffer::own(std::move(values)));
  };
  add("prompt_ids", "I32", narrow(r.prompt_ids));
  add("completion_ids", "I32", narrow(r.completion_ids));
  add("logprobs", "F32", r.logprobs);
  if (!r.loss_mask.empty()) {
    add("loss_mask", "U8", r.loss_mask);
  }
  if (!r.turn_offsets.empty()) {
    add("turn_offsets", "I32", r.turn_offsets);
  }
  if (!r.turn_rewards.empty()) {
    add("turn_rewards", "F64", r.turn_rewards);
  }
  if (!r.advantages.empty()) {
    add("advantages", "F32", r.advantages);
  }
  if (!r.branches.empty()) {
    std::vector<int64_t> forks;
    for (const Branch& b : r.branches) {
      forks.insert(forks.end(), {b.begin, b.context_end});
    }
    const auto rows = static_cast<int64_t>(r.branches.size());
    payload.add("branches", "I64", {rows, 2}, Buffer::own(std::move(forks)));
  }
  std::vector<int64_t> spans;
  for (const VersionSpan& span : r.versions) {
    spans.insert(spans.end(), {span.version, span.begin, span.end});
  }
  const auto rows = static_cast<int64_t>(r.versions.size());
  payload.add("versions", "I64", {rows, 3}, Buffer::own(std::move(spans)));
  add_images(r.images, payload);
  add_routed_experts(r.routed_experts, payload);
  if (!r.kept_sets.empty()) {
    add("kept_counts", "I32", r.kept_sets.counts);
    add("kept_ids", "I32", r.kept_sets.ids);
  }
  return payload;
}

Result<Rollout> decode_rollout(const Message& message, const Limits& limits) {
  auto rollout = read_rollout(message, limits);
  if (!rollout) {
    return rollout;
  }
  if (Status s = validate(rollout.value(), limits); !s) {
    return s.error();
  }
  return rollout;
}

Payload encode_image(const Image& image) {
  Payload payload = make_payload(MessageType::kImage, ImageBody{image.head.hash});
  payload.add("rgb", "U8", {image.head.height, image.head.width, 3}, image.rgb);
  return payload;
}

Result<ImageHead> read_image_head(const Message& message, const Limits& limits) {
  auto head = stated_head(message, limits);
  if (!head) {
    return head;
  }
  const ImageHead& said = head.value();
  const std::string found = image_hash(said.height, said.width, pixels_of(message));
  if (found != said.hash) {
    return Error{Reason::kChecksum, "IMAGE of " + said.hash + " holds the pixels of " + found};
  }
  return head;
}

Result<Image> decode_image(const Message& message, const Limits& limits) {
  auto head = stated_head(message, limits);
  if (!head) {
    return head.error();
  }
  const Frame frame = pixels_of(message);
  return Image{std::move(head).value(),
               Buffer::own(std::vector<std::byte>(frame.begin(), frame.end()))};
}

FlatRollout flatten_rollout(const Rollout& rollout, const Limits& limits) {
  const Payload payload = encode_rollout(rollout);
  return flatten(pack_header(Header{}, payload, limits), payload);
}

Result<RolloutBatch> read_batch(std::span<const FlatRollout> messages, const Limits& limits) {
  RolloutBatch batch;
  batch.rollouts.reserve(messages.size());
  for (const FlatRollout& flat : messages) {
    const auto message = parse_flat(std::as_bytes(std::span(flat)), limits);
    if (!message) {
      return message.error();
    }
    if (message.value().header().type == MessageType::kImage) {
      auto image = decode_image(message.value(), limits);
      if (!image) {
        return image.error();
      }
      batch.images.push_back(std::move(image).value());
      continue;
    }
    auto rollout = read_rollout(message.value(), limits);
    if (!rollout) {
      return rollout.error();
    }
    batch.rollouts.push_back(std::move(rollout).value());
  }
  return batch;
}

Result<std::vector<Rollout>> read_rollouts(std::span<const FlatRollout> messages,
                                           const Limits& limits) {
  auto batch = read_batch(messages, limits);
  if (!batch) {
    return batch.error();
  }
  return std::move(batch.value().rollouts);
}

std::vector<uint8_t> join_messages(std::span<const FlatRollout> messages) {
  std::vector<uint8_t> out(kBatchMagic, kBatchMagic + sizeof kBatchMagic);
  append(out, static_cast<uint64_t>(messages.size()));
  for (const FlatRollout& flat : messages) {
    append(out, static_cast<uint64_t>(flat.size()));
    out.insert(out.end(), flat.begin(), flat.end());
  }
  append(out, hash64(std::as_bytes(std::span(out))));
  return out;
}

Result<std::vector<FlatRollout>> split_messages(std::span<const uint8_t> bytes) {
  constexpr size_t kWord = sizeof(uint64_t);
  const auto malformed = [](const std::string& what) {
    return Error{Reason::kMalformed, "rollout batch: " + what};
  };
  if (bytes.size() < sizeof kBatchMagic + 2 * kWord ||
      std::memcmp(bytes.data(), kBatchMagic, sizeof kBatchMagic) != 0) {
    return malformed("no RSBATCH1 at the head of " + std::to_string(bytes.size()) + " bytes");
  }
  const std::span<const uint8_t> hashed = bytes.first(bytes.size() - kWord);
  if (hash64(std::as_bytes(hashed)) != read_u64(bytes.last(kWord))) {
    return Error{Reason::kChecksum, "rollout batch: bytes do not match their xxh3"};
  }
  std::span<const uint8_t> rest = hashed.subspan(sizeof kBatchMagic);
  const uint64_t count = read_u64(rest);
  rest = rest.subspan(kWord);
  std::vector<FlatRollout> messages;  // not reserved: `count` is untrusted
  for (uint64_t i = 0; i < count; ++i) {
    if (rest.size() < kWord || read_u64(rest) > rest.size() - kWord) {
      return malformed("ends within rollout " + std::to_string(i) + " of " + std::to_string(count));
    }
    const auto message = rest.subspan(kWord, read_u64(rest));
    messages.emplace_back(message.begin(), message.end());
    rest = rest.subspan(kWord + message.size());
  }
  if (!rest.empty()) {
    return malformed(std::to_string(rest.size()) + " bytes after the last rollout");
  }
  return messages;
}

}  // namespace ringside::bridge
