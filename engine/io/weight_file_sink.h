// Sink of exported weights that writes the weight files of a Hugging Face directory.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>

#include "engine/io/kept_tensors.h"
#include "engine/models/weight_export.h"

namespace ringside::engine {

// Writes all units into `dir`, which exists, as a WeightStream of max_shard_bytes, and then what is
// kept. storage: kFloat, kDouble, kBFloat16 or kHalf; some parameters have the dtype of
// widened_dtype(). Holds one unit at a time.
// Throws: as WeightStream and KeptTensors::write().
void write_weight_files(UnitExport& units, const std::filesystem::path& dir, at::ScalarType storage,
                        int64_t max_shard_bytes, const KeptTensors& kept = {});

}  // namespace ringside::engine
