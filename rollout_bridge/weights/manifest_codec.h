// Encoding and decoding of weight manifests.
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/protocol/wire.h"

namespace ringside::bridge {

// The manifest frame of WEIGHTS_OFFER: one msgpack map.
std::vector<uint8_t> encode_manifest(const Manifest& manifest);
// Checks lengths before it allocates, then the rules of validate() in snapshot.h.
// Errors: kLimit, kMalformed, those of validate().
Result<Manifest> decode_manifest(Frame bytes, const Limits& limits = {});

}  // namespace ringside::bridge
