// vLLM's route for prompts with images: token ids whose placeholders are expanded, and the images'
// patch rows, so that the server computes on the trainer's own pixels. An image takes 32 bytes a
// pixel on the wire: two frames of three fp32 numbers, in base64.
//
// The server's caches know an image by a name of ours, which holds the weight version: the rows of
// a trained tower change with the weights, and a pause that keeps requests keeps the caches too.
//
// Source: vllm/entrypoints/serve/disagg (protocol.py, serving.py, mm_serde.py) and
// vllm/v1/serial_utils.py of 0.24.0.
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rollout_bridge/servers/inference_server.h"

namespace ringside::bridge {

inline constexpr const char* kVllmTokenRoute = "/inference/v1/generate";

// The image in vLLM's msgpack of a MultiModalKwargsItem of the Qwen-VL families.
std::vector<uint8_t> vllm_image_item(const RequestImage& image);

// The body of the request, which has passed check_request(). model: the served name.
nlohmann::json vllm_token_request(const GenerateRequest& request, const std::string& model);

// Reads one choice. The error does not contain its place in the answer.
// Errors: kMalformed for missing fields or other tokens under logprobs than under token_ids; as
// read_ids(), read_logprob(), check_result() and read_vllm_routes().
Result<GenerateResult> read_vllm_token_choice(const nlohmann::json& choice,
                                              const GenerateRequest& request, int64_t vocab_size);

}  // namespace ringside::bridge
