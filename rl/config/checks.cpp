#include "rl/config/checks.h"

namespace ringside::rl {
namespace {

std::string text_of(double value) {
  std::string text = std::to_string(value);
  return text.substr(0, text.find_last_not_of('0') + 2);
}

void check_algorithm(const Config& c, std::vector<Mistake>& mistakes) {
  const bool grpo = c.algorithm.name == AlgorithmName::kGrpo;
  if (grpo && c.rollout.group_size < 2) {
    mistakes.push_back({"rollout.group_size",
                        "is 1, but algorithm.name grpo measures each sample against its group; "
                        "expected at least 2"});
  }
  if (!grpo && c.algorithm.preset != "none") {
    mistakes.push_back({"algorithm.preset",
                        "is " + c.algorithm.preset + ", but algorithm.name is sft; expected none"});
  }
  if (c.algorithm.loss_divisor != 0 && c.algorithm.loss_aggregation != LossAggregation::kConstant) {
    mistakes.push_back({"algorithm.loss_divisor",
                        "is " + text_of(c.algorithm.loss_divisor) +
                            ", but algorithm.loss_aggregation " +
                            std::string(to_string(c.algorithm.loss_aggregation)) +
                            " does not use it; expected 0, or loss_aggregation constant"});
  }
  const auto samples =
      grpo ? c.rollout.prompts_per_step * c.rollout.group_size : c.train.batch_size;
  if (c.train.num_mini_batches > samples) {
    mistakes.push_back({"train.num_mini_batches",
                        "is " + std::to_string(c.train.num_mini_batches) + ", but a step has " +
                            std::to_string(samples) + " samples; expected at most that"});
  }
}

}  // namespace

std::vector<Mistake> check_combinations(const Config& c) {
  std::vector<Mistake> mistakes;
  check_algorithm(c, mistakes);
  if (c.eval.every > 0 && c.data.eval.empty()) {
    mistakes.push_back({"eval.every", "is " + std::to_string(c.eval.every) +
                                          ", but data.eval is empty; expected data.eval to name "
                                          "the held-out prompts, or eval.every 0"});
  }
  if (c.bridge.worker_timeout_s <= c.bridge.heartbeat_s) {
    mistakes.push_back({"bridge.worker_timeout_s",
                        "is " + text_of(c.bridge.worker_timeout_s) +
                            ", but heartbeats come every bridge.heartbeat_s = " +
                            text_of(c.bridge.heartbeat_s) + " s; expected more than that"});
  }
  if (c.bridge.rollout_address == c.bridge.weights_address &&
      !c.bridge.rollout_address.ends_with(":0")) {
    mistakes.push_back({"bridge.weights_address", "equals bridge.rollout_address " +
                                                      c.bridge.rollout_address +
                                                      "; expected an address of its own"});
  }
  return mistakes;
}

}  // namespace ringside::rl
