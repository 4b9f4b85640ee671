// Values of a decoder's parameters as they act: quantised ones unpacked, adapters merged into them.
// Outside autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "engine/models/decoder.h"
#include "engine/models/decoder_units.h"

namespace ringside::engine {

// The whole values of a unit of the decoder's export, without adapters. Undefined for quantised
// ones, unless they are spread over ranks.
// plan: one of decoder.parameters().export_plans().
// Shapes: [the plan's elements].
// Collective over: the shard of a sharded unit; the ranks of the experts for theirs; the
// tensor-parallel ranks.
at::Tensor gather_values(const Decoder& decoder, const ExportPlan& plan);

// The values of the unit as they act: unpacked, or with adapters merged into them, in the master
// dtype; otherwise `gathered` itself.
// gathered: its values as gather_values() returned them.
// Shapes: [the plan's elements]. Not collective.
at::Tensor acting_values(const Decoder& decoder, const ExportPlan& plan,
                         const at::Tensor& gathered);

// Both for the plan of that place.
// Collective over: as gather_values().
// Throws: std::out_of_range when there is no such unit.
at::Tensor effective_values(const Decoder& decoder, std::size_t unit);

}  // namespace ringside::engine
