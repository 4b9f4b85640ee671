// Parser of token ids and log-probs in a server's answer. Answers are untrusted: an invalid one
// becomes an error, never a training sample.
// Thread safety: pure.
#pragma once

#include <nlohmann/json.hpp>

#include "rollout_bridge/servers/inference_server.h"

namespace ringside::bridge {

// Log-probs below this stand for minus infinity: vLLM writes -9999, llama.cpp the lowest float.
inline constexpr double kLowestLogprob = -9000.0;

// The member; null when `object` is not an object, or the member is missing or JSON null.
const nlohmann::json* member(const nlohmann::json& object, const char* key);
// The string of the member; nullopt when there is none.
std::optional<std::string> text_member(const nlohmann::json& object, const char* key);

// Integers in [0, limit).
// Errors: kMalformed for another type, kInvalidField for another range.
Result<int64_t> read_id(const nlohmann::json& value, const std::string& name, int64_t limit);
Result<std::vector<int64_t>> read_ids(const nlohmann::json& value, const std::string& name,
                                      int64_t limit);
// A finite number in [kLowestLogprob, kMaxLogprob].
// Errors: kInvalidField otherwise, also for null and NaN.
Result<float> read_logprob(const nlohmann::json& value, const std::string& name);
Result<std::vector<float>> read_logprobs(const nlohmann::json& value, const std::string& name);

// Checks a result. Log-probs are as many as ids (kMalformed). Ids are at most max_tokens, and at
// least one unless aborted or error (kInvalidField). Spans cover all ids in order (kInvalidField).
Status check_result(const GenerateResult& result, const GenerateRequest& request);

// Checks the ranges stated at GenerateRequest and RequestImage; the error names the field. Ids must
// be below `vocab_size`.
// Errors: kInvalidField.
Status check_request(const GenerateRequest& request, int64_t vocab_size);
// Checks the ranges stated at SamplingSettings, and that every setting that a Rollout cannot state
// is off.
// Errors: kInvalidField.
Status check_settings(const SamplingSettings& settings);

}  // namespace ringside::bridge
