// For the host: a launch's error as an exception.
#pragma once

#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#define C10_CUDA_CHECK(expression)                                                    \
  do {                                                                                \
    const cudaError_t error_of_launch = (expression);                                 \
    TORCH_CHECK(error_of_launch == cudaSuccess, "a launch failed with CUDA's error ", \
                static_cast<int>(error_of_launch));                                   \
  } while (false)
