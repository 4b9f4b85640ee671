// Encoding and decoding of rollouts and images.
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/protocol/wire.h"

namespace ringside::bridge {

// Encodes a rollout that has passed validate(): ids as int32, log-probs as fp32.
Payload encode_rollout(const Rollout& rollout);

// Decodes a ROLLOUT message that passed parse_message or parse_flat, and runs validate() on the
// rollout.
// Errors: kMalformed (another message, a mistyped field), kFrames (a frame is missing, or has
// another dtype or shape), kLimit, kInvalidField (finish_reason, a missing field), those of
// validate().
Result<Rollout> decode_rollout(const Message& message, const Limits& limits = {});

// A ROLLOUT message as one run of bytes, see flatten(): as it came from a worker, stands in the
// journal and goes to the other ranks of the trainer.
using FlatRollout = std::vector<uint8_t>;
// Throws: as pack_header.
FlatRollout flatten_rollout(const Rollout& rollout, const Limits& limits = {});

// Rollouts, and the images that they name, each once.
struct RolloutBatch {
  std::vector<Rollout> rollouts;
  std::vector<Image> images;
};

// The content of ROLLOUTs and IMAGEs that passed decode_rollout() and read_image_head() before:
// their rules are not checked again.
// Errors: those of parse_flat, of decode_rollout but validate()'s, and of decode_image.
Result<RolloutBatch> read_batch(std::span<const FlatRollout> messages, const Limits& limits = {});
// Its rollouts.
Result<std::vector<Rollout>> read_rollouts(std::span<const FlatRollout> messages,
                                           const Limits& limits = {});

// Encodes an image that has passed validate().
Payload encode_image(const Image& image);

// The image of an IMAGE that passed parse_message or parse_flat. Its pixels have this hash.
// Errors: kMalformed (another message, a mistyped field), kFrames (no frame `rgb` of U8 [height,
// width, 3]), kChecksum (pixels of another hash), those of validate().
Result<ImageHead> read_image_head(const Message& message, const Limits& limits = {});

// The same with a copy of its pixels, which are taken to have the hash that the message says.
// Errors: as read_image_head, but kChecksum.
Result<Image> decode_image(const Message& message, const Limits& limits = {});

// An IMAGE message as one run of bytes, see flatten(): as it came from a worker, stands in the
// journal and goes to the other ranks of the trainer.
using FlatImage = std::vector<uint8_t>;

// Messages as one byte string, for broadcasting a step's rollouts between trainer ranks: magic,
// count, per message a length and its bytes, then XXH3-64 of all before.
std::vector<uint8_t> join_messages(std::span<const FlatRollout> messages);
// The inverse of join_messages.
// Errors: kMalformed (other bytes, cut off), kChecksum.
Result<std::vector<FlatRollout>> split_messages(std::span<const uint8_t> bytes);

}  // namespace ringside::bridge
