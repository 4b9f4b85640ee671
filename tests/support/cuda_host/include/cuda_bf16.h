// CUDA's bfloat16 for the host.
#pragma once

#include <c10/util/BFloat16.h>

struct __nv_bfloat16 {
  c10::BFloat16 value;
};

// Exact.
inline float __bfloat162float(__nv_bfloat16 x) { return x.value; }
