#include "engine/nn/router.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <tuple>

namespace ringside::engine {
namespace {

void check_logits(const at::Tensor& logits_sX, int64_t per_token) {
  TORCH_CHECK(logits_sX.dim() == 2 && per_token > 0 && per_token <= logits_sX.size(1),
              "router: ", per_token, " experts a token of logits ", logits_sX.sizes());
}

at::Tensor largest(const at::Tensor& scores_sX, int64_t per_token, sp::KeptResults* kept) {
  return sp::compute_once(kept, [&] {
    return sp::KeptResults::Tensors{std::get<1>(at::topk(scores_sX.detach(), per_token, 1))};
  })[0];
}

}  // namespace

Routes route_by_softmax(const at::Tensor& logits_sX, int64_t per_token, bool normalise,
                        bool in_fp32, sp::KeptResults* kept) {
  check_logits(logits_sX, per_token);
  const bool doubles = logits_sX.scalar_type() == at::kDouble && !in_fp32;
  const at::Tensor probabilities = at::softmax(logits_sX, 1, doubles ? at::kDouble : at::kFloat);
  const at::Tensor expert = largest(probabilities, per_token, kept);
  at::Tensor weight = probabilities.gather(1, expert);
  if (normalise) {
    weight = weight / weight.sum(1, /*keepdim=*/true);
  }
  return {expert, weight.to(logits_sX.scalar_type())};
}

Routes route_by_largest(const at::Tensor& logits_sX, int64_t per_token, sp::KeptResults* kept) {
  check_logits(logits_sX, per_token);
  const at::Tensor expert = largest(logits_sX, per_token, kept);
  return {expert, at::softmax(logits_sX.gather(1, expert), 1)};
}

}  // namespace ringside::engine
