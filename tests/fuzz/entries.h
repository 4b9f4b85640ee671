// What a fuzzer feeds and what the replay test feeds again: one function per format, each ending in
// abort() when a rule of the format breaks. Bytes that are refused are fine.
#pragma once

#include <cstdint>
#include <span>

namespace ringside::bridge::fuzz {

// A flat message (codec.h's form of frame 0 and buffers): parse_flat, parse_message on its cuts,
// every body struct.
void wire(std::span<const uint8_t> bytes);

// A ROLLOUT. The input is frame 0 and the buffers of a flat message whose lengths and hashes are
// made right before it is parsed, so that mutations reach decode_rollout and validate. What is
// accepted must encode to the same rollout again. Also decode_rollouts on the bytes with a right
// hash at the end.
void codec(std::span<const uint8_t> bytes);

// A manifest, as it is and with its root hash made right. What is accepted must come back equal.
void manifest(std::span<const uint8_t> bytes);

}  // namespace ringside::bridge::fuzz
