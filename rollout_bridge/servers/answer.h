// Reading token ids and log-probs out of a server's answer. Nothing a server says is taken on
// trust: what does not hold becomes an error, never a training sample. Pure, thread-safe.
#pragma once

#include <nlohmann/json.hpp>

#include "rollout_bridge/servers/inference_server.h"

namespace ringside::bridge {

// Below this a log-prob stands for minus infinity: vLLM writes -9999, llama.cpp the lowest float.
inline constexpr double kLowestLogprob = -9000.0;

// The member, or null when `object` is no object or the member is missing or JSON's null.
const nlohmann::json* member(const nlohmann::json& object, const char* key);
// The string of the member; nullopt where there is none.
std::optional<std::string> text_member(const nlohmann::json& object, const char* key);

// Whole numbers in [0, limit). kMalformed for another type, kInvalidField for another range.
Result<int64_t> read_id(const nlohmann::json& value, const std::string& name, int64_t limit);
Result<std::vector<int64_t>> read_ids(const nlohmann::json& value, const std::string& name,
                                      int64_t limit);
// A finite number in [kLowestLogprob, kMaxLogprob]; kInvalidField otherwise, null and NaN included.
Result<float> read_logprob(const nlohmann::json& value, const std::string& name);
Result<std::vector<float>> read_logprobs(const nlohmann::json& value, const std::string& name);

// What every result has to fulfil: as many log-probs as ids (kMalformed), no more ids than asked
// for and some unless aborted or error (kInvalidField), spans in order over all ids
// (kInvalidField).
Status check_result(const GenerateResult& result, const GenerateRequest& request);

// The ranges stated at GenerateRequest; the error names the field. `vocab_size` is the ids' limit.
Status check_request(const GenerateRequest& request, int64_t vocab_size);
// The ranges stated at SamplingSettings, and that everything a Rollout cannot state is off.
Status check_settings(const SamplingSettings& settings);

}  // namespace ringside::bridge
