// Rollouts to and from their wire form.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/protocol/wire.h"

namespace ringside::bridge {

// The wire form of a rollout that passed validate(): ids as int32, log-probs as fp32. Throws
// std::invalid_argument with validate()'s sentence otherwise.
Payload encode_rollout(const Rollout& rollout, const Limits& limits = {});

// A rollout out of a ROLLOUT message that passed parse_message; runs validate() on it.
Result<Rollout> decode_rollout(const Message& message, const Limits& limits = {});

// Rollouts as one self-contained byte string (magic, count, per rollout a length and its flat
// message, XXH3-64 of all before), for broadcasting a step's rollouts between trainer ranks.
// Throws std::invalid_argument when a rollout fails validate().
std::vector<uint8_t> encode_rollouts(std::span<const Rollout> rollouts, const Limits& limits = {});
Result<std::vector<Rollout>> decode_rollouts(std::span<const uint8_t> bytes,
                                             const Limits& limits = {});

}  // namespace ringside::bridge
