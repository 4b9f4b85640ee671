// The part of the CUDA runtime's interface that our kernels and their callers use, for the host.
// What happens at a launch is in tests/support/cuda_host/machine.h.
#pragma once

#include <cstdint>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
};

struct CUstream_st;
using cudaStream_t = CUstream_st*;

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  // Sizes that are left out are 1.
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

// The error of the last launch, which is then forgotten.
cudaError_t cudaGetLastError();
