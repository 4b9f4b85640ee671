// Bytes that tensor-parallel ranks send each other, predicted from shapes. What they count is sent
// with kTensorTag.
#pragma once

#include <cstdint>

#include "engine/models/headed_model.h"
#include "engine/runner/device_batches.h"

namespace ringside::engine {

// Of this rank for the forward and backward of an input by all of a model's layers and ends, as its
// activation options say.
int64_t tensor_bytes(const HeadedModel& model, const ModelInput& input);

}  // namespace ringside::engine
