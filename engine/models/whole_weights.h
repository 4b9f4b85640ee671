// Whole weights of a sharded decoder, gathered unit by unit.
#pragma once

#include <memory>
#include <vector>

#include "engine/models/decoder.h"

namespace ringside::engine {

// Whether this rank holds only a part of some parameters.
bool is_sharded(const Decoder& decoder);

// A decoder of its own with all parameters on the device, outside any sharding: constants in the
// compute dtype. Adapters are merged and quantised weights unpacked: it scores as this decoder
// does. Collective over: the shard, when the decoder is sharded.
std::unique_ptr<Decoder> whole_copy(const Decoder& decoder);

// Takes part in another rank's reading of all parameters (ParamUnit::gather_flat() of every unit,
// in order) and keeps nothing. One unit at a time is in memory.
// Collective over: the shard, when the units are sharded.
void join_reading(const std::vector<const ParamUnit*>& units);

}  // namespace ringside::engine
