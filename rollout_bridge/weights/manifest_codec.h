// Manifests to and from their wire form.
#pragma once

#include <cstdint>
#include <vector>

#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/protocol/wire.h"

namespace ringside::bridge {

// The manifest frame of WEIGHTS_OFFER: one msgpack map.
std::vector<uint8_t> encode_manifest(const Manifest& manifest);
// Checks what validate() of snapshot.h checks, and lengths before anything is allocated.
Result<Manifest> decode_manifest(Frame bytes, const Limits& limits = {});

}  // namespace ringside::bridge
