// Logits: the product of hidden states with the head, which bf16 does not hold well.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/params/weight.h"

namespace ringside::engine {

// hidden head^T, without autograd: what sampling draws from and what log-probs are of. Off CUDA
// bf16 and fp16 inputs give fp32 logits that are not rounded: in bf16 a logit of 20 would be off by
// up to 0.06, which is half of what parts the log-probs of two correct programs. On CUDA and for
// other dtypes in the dtype of the inputs.
// Shapes: hidden_nE, head_VE: same dtype; returns [n, V].
// Reads the head's panels where it has them.
at::Tensor head_logits(const at::Tensor& hidden_nE, const Weight& head_VE);

}  // namespace ringside::engine
