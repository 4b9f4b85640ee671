#include "engine/nn/router.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <tuple>

namespace ringside::engine {

Routes route_by_softmax(const at::Tensor& logits_sX, int64_t per_token, bool normalise,
                        bool in_fp32, const LayerRoutes& choice) {
  TORCH_CHECK(logits_sX.dim() == 2 && per_token > 0 && per_token <= logits_sX.size(1),
              "router: ", per_token, " experts a token of logits ", logits_sX.sizes());
  const bool doubles = logits_sX.scalar_type() == at::kDouble && !in_fp32;
  const at::Tensor probabilities = at::softmax(logits_sX, 1, doubles ? at::kDouble : at::kFloat);
  const at::Tensor expert = choice.choose(logits_sX.size(1), [&] {
    return std::get<1>(at::topk(probabilities.detach(), per_token, 1));
  });
  at::Tensor weight = probabilities.gather(1, expert);
  if (normalise) {
    weight = weight / weight.sum(1, /*keepdim=*/true);
  }
  return {expert, weight.to(logits_sX.scalar_type())};
}

}  // namespace ringside::engine
