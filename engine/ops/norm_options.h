// Options of a root-mean-square norm. Torch-free.
#pragma once

namespace ringside::engine {

struct NormOptions {
  double eps = 0.0;
  // Norms fp64 in fp32 too, operation for operation as transformers, for comparisons with it.
  bool in_fp32 = false;
  // The factor is 1 + weight, as in Gemma and Qwen3-Next. It is applied in the norm's dtype, and
  // the result is rounded once.
  bool plus_one = false;
};

}  // namespace ringside::engine
