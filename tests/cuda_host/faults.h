// Small kernels with one fault each, which a test plants by name (planted.h). Without it they are
// right.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ringside::test {

// Runs the kernels with the fault; out has 256 floats, x has 256 that are initialised.
void run_sum(const float* x, float* out);
void run_barriers(float* out);
void run_lanes(const float* x, float* out);
void run_histogram(const float* x, float* bins);
void run_neighbours(float* x, float* out);
void run_copies(const float* x, float* out);

}  // namespace ringside::test
