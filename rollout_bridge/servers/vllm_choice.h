// What the requests and choices of vLLM's routes have in common.
// Thread safety: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "rollout_bridge/servers/inference_server.h"

namespace ringside::bridge {

// The sampling parameters of a request, by vLLM's names. Those that recipes have no key for are
// named too, because a model's generation_config.json would set them.
nlohmann::json vllm_sampling(const GenerateRequest& request);

// The reason of that name; nullopt for a name that vLLM does not write.
std::optional<FinishReason> vllm_finish(const std::string& name);

// Sets result.routed where the request asks for experts and the sample was not aborted.
// Errors: kUnsupported when the choice has none; kMalformed as read_npy_table().
Status read_vllm_routes(const nlohmann::json& choice, const GenerateRequest& request,
                        GenerateResult& result);

}  // namespace ringside::bridge
