#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rollout_bridge/servers/answer.h"
#include "rollout_bridge/servers/vllm_token_route.h"
#include "tests/fuzz/entries.h"

namespace ringside::bridge::fuzz {
namespace {

using nlohmann::json;

constexpr int64_t kVocabulary = 1000;

void check_label(const json& object) {
  const auto label = text_member(object, "version");
  if (!label) {
    return;
  }
  const auto version = version_of_label(*label);
  require(!version || (*version >= 0 && std::to_string(*version) == *label));
}

// Spans as clients read them: any number that JSON can write.
std::vector<LabelSpan> spans_of(const json& object) {
  std::vector<LabelSpan> out;
  const json* list = member(object, "spans");
  if (list == nullptr || !list->is_array()) {
    return out;
  }
  for (const json& item : *list) {
    const json* begin = member(item, "begin");
    const json* end = member(item, "end");
    if (begin == nullptr || end == nullptr || !begin->is_number_integer() ||
        !end->is_number_integer()) {
      continue;
    }
    out.push_back(
        {text_member(item, "version").value_or(""), begin->get<int64_t>(), end->get<int64_t>()});
  }
  return out;
}

void check_spans(const GenerateResult& result) {
  int64_t next = 0;
  for (const LabelSpan& span : result.versions) {
    require(span.begin == next && span.end >= next);
    next = span.end;
  }
  require(result.versions.empty() || next == static_cast<int64_t>(result.completion_ids.size()));
}

void check_answer(const json& value) {
  check_label(value);
  GenerateResult result;
  if (const json* ids = member(value, "ids")) {
    auto read = read_ids(*ids, "ids", kVocabulary);
    if (read) {
      result.completion_ids = std::move(read).value();
    }
  }
  for (const int64_t id : result.completion_ids) {
    require(id >= 0 && id < kVocabulary);
  }
  if (const json* logprobs = member(value, "logprobs")) {
    auto read = read_logprobs(*logprobs, "logprobs");
    if (read) {
      result.logprobs = std::move(read).value();
    }
  }
  for (const float logprob : result.logprobs) {
    require(std::isfinite(logprob) && logprob >= kLowestLogprob && logprob <= kMaxLogprob);
  }
  result.versions = spans_of(value);
  GenerateRequest request;
  request.prompt_ids = {1};
  request.max_tokens = 64;
  request.request_id = request.cache_salt = "1";
  if (const json* prompt = member(value, "prompt")) {
    auto read = read_ids(*prompt, "prompt", kVocabulary);
    if (read) {
      request.prompt_ids = std::move(read).value();
    }
  }
  require(check_request(request, kVocabulary).ok() == !request.prompt_ids.empty());
  if (!check_result(result, request)) {
    return;
  }
  require(result.completion_ids.size() <= static_cast<std::size_t>(request.max_tokens));
  require(result.completion_ids.size() == result.logprobs.size());
  require(!result.completion_ids.empty());
  check_spans(result);
}

// The same bytes as a choice of vLLM's route for tokens.
void check_token_choice(const json& value) {
  GenerateRequest request;
  request.prompt_ids = {1};
  request.max_tokens = 4;
  const auto result = read_vllm_token_choice(value, request, kVocabulary);
  if (!result) {
    return;
  }
  const std::vector<int64_t>& ids = result.value().completion_ids;
  require(ids.size() <= 4 && result.value().logprobs.size() == ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    require(ids[i] >= 0 && ids[i] < kVocabulary);
    require(value["logprobs"]["content"][i]["token"] == "token_id:" + std::to_string(ids[i]));
    require(result.value().logprobs[i] <= kMaxLogprob);
  }
}

}  // namespace

void answer(std::span<const uint8_t> bytes) {
  const json value = json::parse(bytes.begin(), bytes.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_discarded()) {
    check_answer(value);
    check_token_choice(value);
  }
}

}  // namespace ringside::bridge::fuzz
