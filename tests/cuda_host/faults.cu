#include "tests/cuda_host/faults.h"
#include "tests/support/cuda_host/planted.h"

namespace ringside::test {
namespace {

using cuda_host::planted;

constexpr unsigned kAll = 0xffffffff;
constexpr int kThreads = 64;

// out[block] = the sum of the block's 64 elements.
__global__ void sum_kernel(const float* x, float* out) {
  __shared__ float part[kThreads];
  part[threadIdx.x] = x[blockIdx.x * kThreads + threadIdx.x];
  if (!planted("sum: no barrier")) {
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    float total = 0;
    for (int i = 0; i < kThreads; ++i) {
      total += part[i + (planted("sum: an index past the array") ? 1 : 0)];
    }
    out[planted("sum: one result for all blocks") ? 0 : blockIdx.x] = total;
  }
}

__global__ void dynamic_sum_kernel(const float* x, float* out) {
  extern __shared__ float part[];
  if (!planted("dynamic sum: a part is not written") || threadIdx.x != 5) {
    part[threadIdx.x] = x[threadIdx.x];
  }
  __syncthreads();
  const int end = kThreads + (planted("dynamic sum: an index past the memory") ? 1 : 0);
  float total = 0;
  for (int i = 0; i < end; ++i) {
    total += part[i];
  }
  if (threadIdx.x == 0) {
    out[8] = total;
  }
}

__global__ void barriers_kernel(float* out) {
  if (!planted("barriers: a barrier in a branch") || threadIdx.x < 48) {
    __syncthreads();
  }
  if (planted("barriers: two branches, a barrier in each") && threadIdx.x < 32) {
    __syncthreads();  // of the lower half
  } else {
    __syncthreads();  // of all
  }
  if (planted("barriers: a thread returns before") && threadIdx.x == 7) {
    return;
  }
  const int count = __syncthreads_count(threadIdx.x < 10);
  const int any = __syncthreads_or(threadIdx.x == 70);
  if (threadIdx.x == 0) {
    out[0] = static_cast<float>(count + any);
  }
}

__global__ void lanes_kernel(const float* x, float* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float value = x[threadIdx.x];
  if (!planted("lanes: a shuffle in a branch") || lane < 20) {
    value += __shfl_xor_sync(kAll, value, 1);  // in a branch
  }
  const unsigned half = lane < 16 ? 0x0000ffff : 0xffff0000;
  const unsigned mask = planted("lanes: a mask without the caller") ? 0x0000ffff : half;
  value += __shfl_down_sync(mask, value, 2, 16);  // of a half
  const unsigned low = __ballot_sync(kAll, lane < 4);
  if (lane < 4) {
    value += __shfl_sync(low, value, planted("lanes: a value of a lane that is not named") ? 9 : 2);
  }
  __syncwarp();
  out[threadIdx.x] = value + (__any_sync(kAll, lane == 3) != 0 ? 1.0f : 0.0f);
}

// bins[k] += how many elements have the integer part k.
__global__ void histogram_kernel(const float* x, float* bins) {
  const int bin = static_cast<int>(x[blockIdx.x * blockDim.x + threadIdx.x]);
  if (planted("histogram: no atomic")) {
    bins[bin] += 1.0f;
  } else {
    atomicAdd(&bins[bin], 1.0f);
  }
  if (planted("histogram: a plain read beside atomics") && threadIdx.x == 0) {
    bins[200] = bins[bin];
  }
  if (planted("histogram: an atomic between two elements") && threadIdx.x == 0) {
    atomicAdd(reinterpret_cast<int*>(reinterpret_cast<char*>(bins) + 2), 1);
  }
}

// Each warp sums 32 elements of its memory by halves.
__global__ void neighbours_kernel(float* x, float* out) {
  __shared__ float of_lanes[32];
  of_lanes[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  for (unsigned half = 16; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      of_lanes[threadIdx.x] += of_lanes[threadIdx.x + half];
    }
    if (!planted("neighbours: lanes taken to be in step")) {
      __syncwarp();
    }
  }
  out[threadIdx.x] = of_lanes[0];
  if (planted("neighbours: a neighbour that another thread writes")) {
    x[threadIdx.x] = x[threadIdx.x + 1];
  }
}

struct Wide {
  float x[8];
};

__global__ void copy_kernel(const float* x, float* out) {
  const int i = static_cast<int>(threadIdx.x);
  const float* from = x + (planted("copies: a wide load between its boundaries") ? 1 : 0);
  const uint4 four = reinterpret_cast<const uint4*>(from)[i];
  reinterpret_cast<uint4*>(out)[i] = four;
  if (planted("copies: a write before the buffer") && i == 0) {
    out[-1] = 0.0f;
  }
  if (planted("copies: a wide load past the buffer") && i == 31) {
    *reinterpret_cast<Wide*>(out) = *reinterpret_cast<const Wide*>(x + 252);
  }
}

}  // namespace

void run_sum(const float* x, float* out) {
  sum_kernel<<<4, kThreads>>>(x, out);
  dynamic_sum_kernel<<<1, kThreads, kThreads * sizeof(float)>>>(x, out);
}

void run_barriers(float* out) {
  barriers_kernel<<<1, planted("barriers: a block of too many threads") ? 1025 : 64>>>(out);
}

void run_lanes(const float* x, float* out) {
  lanes_kernel<<<1, planted("lanes: a warp that is not whole") ? 40 : 64>>>(x, out);
}

void run_histogram(const float* x, float* bins) { histogram_kernel<<<4, 64>>>(x, bins); }

void run_neighbours(float* x, float* out) { neighbours_kernel<<<1, 32>>>(x, out); }

void run_copies(const float* x, float* out) { copy_kernel<<<1, 32>>>(x, out); }

}  // namespace ringside::test
