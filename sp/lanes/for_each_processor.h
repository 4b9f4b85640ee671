// Functions that are compiled for several kinds of x86 processor.
#pragma once

// Before a function: it is compiled for AVX-512, for AVX2 and for neither; the processor chooses
// when the program starts.
#if defined(__x86_64__)
#define RINGSIDE_FOR_EACH_PROCESSOR \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define RINGSIDE_FOR_EACH_PROCESSOR
#endif
