// For the host: there is one stream, and work on it is done at once.
#pragma once

#include <cuda_runtime_api.h>

namespace c10::cuda {

inline cudaStream_t getCurrentCUDAStream() { return nullptr; }

}  // namespace c10::cuda
