#include "rl/config/adapter_checks.h"

#include <stdexcept>
#include <string>

#include "rl/config/adapter_names.h"
#include "rl/config/environment_choice.h"
#include "rl/config/task.h"
#include "rl/config/teacher.h"

namespace ringside::rl {
namespace {

constexpr const char* kBut = ", but lora.adapters names adapters that learn apart: ";

// Models that would learn from the samples of all adapters, or be there once for each.
void check_other_models(const Config& c, std::vector<Mistake>& mistakes) {
  if (has_critic(c)) {
    mistakes.push_back({"algorithm.advantage.estimator",
                        std::string("is gae") + kBut +
                            "one critic would learn from the samples of all; expected an estimator "
                            "without a critic"});
  }
  if (has_teacher(c.algorithm)) {
    mistakes.push_back({"algorithm.distillation.teacher",
                        "is " + c.algorithm.distillation.teacher + kBut +
                            "each would have a copy of the teacher; expected \"\""});
  }
  if (!c.model.reference_path.empty()) {
    mistakes.push_back({"model.reference_path",
                        "is " + c.model.reference_path + kBut +
                            "each would have a copy of the reference; expected \"\": the policy "
                            "without its adapter"});
  }
}

void check_sampling(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.lora.publish != LoraPublish::kAdapter) {
    mistakes.push_back({"lora.publish", std::string("is merged") + kBut +
                                            "no one set of whole weights has them all; expected "
                                            "adapter"});
  }
  const ServerWeights weights = c.rollout.server_options.weights;
  if (c.rollout.server != RolloutServer::kEmbedded && c.rollout.server != RolloutServer::kVllm) {
    mistakes.push_back({"rollout.server", "is " + std::string(to_string(c.rollout.server)) +
                                              ", but with lora.adapters requests must name an "
                                              "adapter, which vLLM alone takes; expected embedded "
                                              "or vllm"});
  } else if (c.rollout.server == RolloutServer::kVllm && weights != ServerWeights::kAuto) {
    mistakes.push_back(
        {"rollout.server_options.weights", "is " + std::string(to_string(weights)) + kBut +
                                               "each goes to the server as it is; expected auto"});
  }
  if (has_sessions(c.rollout)) {
    mistakes.push_back({sessions_key(c.rollout),
                        "is set, but with lora.adapters a session would have to name an adapter, "
                        "which the gateway does not; expected \"\""});
  }
  if (c.data.train.empty()) {
    mistakes.push_back({"data.train",
                        "is \"\", but with lora.adapters each of its records names the adapter "
                        "that learns from it (data.adapter_key); expected a file"});
  }
  if (c.eval.every > 0 && c.eval.by == EvalBy::kEmbedded) {
    mistakes.push_back({"eval.by", std::string("is embedded") + kBut +
                                       "rank 0 evaluates one policy; expected workers, or "
                                       "eval.every 0"});
  }
}

}  // namespace

void check_named_adapters(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.lora.adapters.empty()) {
    return;
  }
  try {
    adapter_names(c.lora);
  } catch (const std::invalid_argument& error) {
    mistakes.push_back({"lora.adapters", error.what()});
  }
  if (!samples_completions(c)) {
    return;  // nothing reads the key then, which is said elsewhere
  }
  check_other_models(c, mistakes);
  check_sampling(c, mistakes);
  if (c.train.num_mini_batches > c.rollout.group_size) {
    mistakes.push_back({"train.num_mini_batches",
                        "is " + std::to_string(c.train.num_mini_batches) +
                            ", but with lora.adapters a step may have one group of " +
                            std::to_string(c.rollout.group_size) +
                            " samples (rollout.group_size) for an adapter; expected at most that"});
  }
}

}  // namespace ringside::rl
