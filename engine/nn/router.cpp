#include "engine/nn/router.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <limits>
#include <tuple>

namespace ringside::engine {
namespace {

void check_logits(const at::Tensor& logits_sX, int64_t per_token) {
  TORCH_CHECK(logits_sX.dim() == 2 && per_token > 0 && per_token <= logits_sX.size(1),
              "router: ", per_token, " experts a token of logits ", logits_sX.sizes());
}

at::Tensor largest(const at::Tensor& scores_sX, int64_t per_token, const ExpertPass& choice) {
  return choice.choose(scores_sX.size(1),
                       [&] { return std::get<1>(at::topk(scores_sX.detach(), per_token, 1)); });
}

}  // namespace

Routes route_by_softmax(const at::Tensor& logits_sX, int64_t per_token, bool normalise,
                        bool in_fp32, const ExpertPass& choice) {
  check_logits(logits_sX, per_token);
  const bool doubles = logits_sX.scalar_type() == at::kDouble && !in_fp32;
  const at::Tensor probabilities = at::softmax(logits_sX, 1, doubles ? at::kDouble : at::kFloat);
  const at::Tensor expert = largest(probabilities, per_token, choice);
  at::Tensor weight = probabilities.gather(1, expert);
  if (normalise) {
    weight = weight / weight.sum(1, /*keepdim=*/true);
  }
  return {expert, weight.to(logits_sX.scalar_type())};
}

Routes route_by_largest(const at::Tensor& logits_sX, int64_t per_token, const ExpertPass& choice) {
  check_logits(logits_sX, per_token);
  const at::Tensor expert = largest(logits_sX, per_token, choice);
  return {expert, at::softmax(logits_sX.gather(1, expert), 1)};
}

at::Tensor choose_in_groups(const at::Tensor& scores_sX, const at::Tensor& correction_X,
                            const GroupedChoice& choice) {
  TORCH_CHECK(choice.groups > 0, "router: experts in ", choice.groups,
              " groups, expected at least 1");
  const int64_t experts = scores_sX.size(1), of_group = experts / choice.groups;
  TORCH_CHECK(experts % choice.groups == 0 && choice.kept_groups > 0 &&
                  choice.kept_groups <= choice.groups && choice.per_token > 0 &&
                  choice.per_token <= choice.kept_groups * of_group &&
                  (choice.groups == 1 || of_group > 1),
              "router: ", choice.per_token, " experts a token of ", experts, " in ", choice.groups,
              " groups, of which ", choice.kept_groups, " are kept");
  const at::NoGradGuard no_grad;
  at::Tensor scores = scores_sX + correction_X;
  if (choice.kept_groups < choice.groups) {
    const at::Tensor by_group = scores.view({-1, choice.groups, of_group});
    const at::Tensor group_scores = std::get<0>(at::topk(by_group, 2, 2)).sum(2);
    const at::Tensor kept = std::get<1>(at::topk(group_scores, choice.kept_groups, 1));
    const at::Tensor is_out =
        at::ones_like(group_scores, at::kBool).scatter(1, kept, false).unsqueeze(2);
    scores =
        by_group.masked_fill(is_out, -std::numeric_limits<double>::infinity()).view(scores.sizes());
  }
  return std::get<1>(at::topk(scores, choice.per_token, 1));
}

at::Tensor weigh_scores(const at::Tensor& scores_sX, const at::Tensor& expert_sK, bool normalise,
                        double factor) {
  at::Tensor weight = scores_sX.gather(1, expert_sK);
  if (normalise) {
    weight = weight / (weight.sum(1, /*keepdim=*/true) + 1e-20);
  }
  return weight * factor;
}

}  // namespace ringside::engine
