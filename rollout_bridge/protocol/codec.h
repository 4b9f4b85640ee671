// Encoding and decoding of rollouts.
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

// Decodes a ROLLOUT message that passed parse_message, and runs validate() on the rollout.
// Errors: kMalformed (another message, a mistyped field), kFrames (a frame is missing, or has
// another dtype or shape), kLimit, kInvalidField (finish_reason), those of validate().
Result<Rollout> decode_rollout(const Message& message, const Limits& limits = {});

// Rollouts as one byte string, for broadcasting a step's rollouts between trainer ranks: magic,
// count, per rollout a length and its flat message, then XXH3-64 of all before. The rollouts have
// passed validate().
// Throws: as pack_header.
std::vector<uint8_t> encode_rollouts(std::span<const Rollout> rollouts, const Limits& limits = {});
// The inverse of encode_rollouts.
// Errors: kMalformed (other bytes, cut off), kChecksum, those of parse_flat and decode_rollout.
Result<std::vector<Rollout>> decode_rollouts(std::span<const uint8_t> bytes,
                                             const Limits& limits = {});

}  // namespace ringside::bridge
