// CUDA's half precision for the host.
#pragma once

#include <c10/util/Half.h>

struct __half {
  c10::Half value;
};

// Exact.
inline float __half2float(__half x) { return x.value; }
