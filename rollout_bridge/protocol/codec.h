// Encoding and decoding of rollouts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/protocol/wire.h"

namespace ringside::bridge {

// Encodes a rollout: ids as int32, log-probs as fp32.
// Throws: std::invalid_argument with validate()'s error when the rollout is invalid.
Payload encode_rollout(const Rollout& rollout, const Limits& limits = {});

// Decodes a ROLLOUT message that passed parse_message, and runs validate() on the rollout.
Result<Rollout> decode_rollout(const Message& message, const Limits& limits = {});

// Rollouts as one byte string, for broadcasting a step's rollouts between trainer ranks: magic,
// count, per rollout a length and its flat message, then XXH3-64 of all before.
// Throws: std::invalid_argument when a rollout fails validate().
std::vector<uint8_t> encode_rollouts(std::span<const Rollout> rollouts, const Limits& limits = {});
Result<std::vector<Rollout>> decode_rollouts(std::span<const uint8_t> bytes,
                                             const Limits& limits = {});

}  // namespace ringside::bridge
