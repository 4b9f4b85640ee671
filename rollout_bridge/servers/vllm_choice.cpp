#include "rollout_bridge/servers/vllm_choice.h"

#include <utility>

#include "rollout_bridge/servers/answer.h"

namespace ringside::bridge {

nlohmann::json vllm_sampling(const GenerateRequest& request) {
  const SamplingSettings& sampling = request.sampling;
  return {{"n", 1},
          {"max_tokens", request.max_tokens},
          {"temperature", sampling.temperature},
          {"top_p", sampling.top_p},
          {"top_k", sampling.top_k},
          {"min_p", 0.0},
          {"repetition_penalty", 1.0},
          {"presence_penalty", 0.0},
          {"frequency_penalty", 0.0},
          {"stop_token_ids", request.stop_ids},
          {"logprobs", 0},
          {"seed", request.seed}};
}

std::optional<FinishReason> vllm_finish(const std::string& name) {
  if (name == "stop") {
    return FinishReason::kStop;
  }
  if (name == "length") {
    return FinishReason::kLength;
  }
  if (name == "abort") {
    return FinishReason::kAborted;
  }
  if (name == "error") {
    return FinishReason::kError;
  }
  return std::nullopt;
}

Status read_vllm_routes(const nlohmann::json& choice, const GenerateRequest& request,
                        GenerateResult& result) {
  if (request.experts_per_token == 0 || result.finish_reason == FinishReason::kAborted) {
    return Success{};
  }
  const auto table = text_member(choice, "routed_experts");
  if (!table) {
    return Error{Reason::kUnsupported,
                 "no routed_experts; start the server with --enable-return-routed-experts"};
  }
  auto routed = read_npy_table(*table);
  if (!routed) {
    return routed.error();
  }
  result.routed = std::move(routed).value();
  return Success{};
}

}  // namespace ringside::bridge
