#include "rollout_bridge/servers/llama_cpp.h"

#include <algorithm>

#include "rollout_bridge/servers/answer.h"

namespace ringside::bridge {
namespace {

using nlohmann::json;

// The server's seeds have 32 bits; all ones means a random seed.
uint64_t seed_of(int64_t seed) { return static_cast<uint64_t>(seed) % 0xFFFFFFFFU; }

json completion_body(const GenerateRequest& request) {
  return {{"prompt", request.prompt_ids},
          {"n_predict", request.max_tokens},
          {"temperature", 1.0},
          {"top_k", 0},
          {"top_p", 1.0},
          {"min_p", 0.0},
          {"samplers", json::array({"temperature"})},
          {"repeat_penalty", 1.0},
          {"presence_penalty", 0.0},
          {"frequency_penalty", 0.0},
          {"n_probs", 1},
          {"post_sampling_probs", false},
          {"return_tokens", true},
          {"cache_prompt", false},
          {"seed", seed_of(request.seed)},
          {"stream", false}};
}

std::optional<FinishReason> finish_of(const std::string& text) {
  if (text == "eos" || text == "word") {
    return FinishReason::kStop;
  }
  if (text == "limit") {
    return FinishReason::kLength;
  }
  return std::nullopt;
}

// Reads the log-probs of completion_probabilities. Entries of tokens that were merged into one
// character are missing, so a list that does not match the ids is discarded whole.
Status read_probabilities(const json& list, GenerateResult& result) {
  if (!list.is_array()) {
    return Error{Reason::kMalformed, "completion_probabilities is no array"};
  }
  const std::vector<int64_t>& ids = result.completion_ids;
  result.logprobs_complete = list.size() == ids.size();
  for (std::size_t i = 0; i < list.size() && result.logprobs_complete; ++i) {
    const json* id = member(list[i], "id");
    const json* logprob = member(list[i], "logprob");
    const std::string name = "completion_probabilities[" + std::to_string(i) + "]";
    if (id == nullptr) {
      return Error{Reason::kMalformed, name + " has no id"};
    }
    const Result<float> number = read_logprob(logprob == nullptr ? json() : *logprob, name);
    if (!number) {
      return number.error();
    }
    result.logprobs_complete = *id == ids[i];
    result.logprobs.push_back(number.value());
  }
  if (!result.logprobs_complete) {
    result.logprobs.clear();
  }
  return Success{};
}

Result<GenerateResult> read_result(const json& answer, const GenerateRequest& request,
                                   int64_t vocab_size) {
  GenerateResult result;
  const auto finish = finish_of(text_member(answer, "stop_type").value_or(""));
  if (!finish) {
    return Error{Reason::kMalformed, "no stop_type that is known"};
  }
  result.finish_reason = *finish;
  const json* truncated = member(answer, "truncated");
  if (truncated != nullptr && *truncated != false) {
    return Error{Reason::kInvalidField, "the context was truncated"};
  }
  const json* evaluated = member(answer, "tokens_evaluated");
  if (evaluated != nullptr && *evaluated != request.prompt_ids.size()) {
    return Error{Reason::kInvalidField, "tokens_evaluated is " + evaluated->dump() + " for " +
                                            std::to_string(request.prompt_ids.size()) +
                                            " prompt ids"};
  }
  const json* ids = member(answer, "tokens");
  if (ids == nullptr) {
    return Error{Reason::kMalformed, "no tokens although return_tokens was set"};
  }
  auto read = read_ids(*ids, "tokens", vocab_size);
  if (!read) {
    return read.error();
  }
  result.completion_ids = std::move(read).value();
  const json* list = member(answer, "completion_probabilities");
  // The server omits an empty list: all tokens were parts of characters.
  const Status probabilities = read_probabilities(list == nullptr ? json::array() : *list, result);
  if (!probabilities) {
    return probabilities.error();
  }
  const Status status = check_result(result, request);
  if (!status) {
    return status.error();
  }
  return result;
}

// Cuts a result after its first stop id. The server stops only at the model's own end and at texts,
// so it may have continued after a stop id. The tokens up to there are the completion with that
// stop id.
void cut_at_stop(const std::vector<int64_t>& stop_ids, GenerateResult& result) {
  std::vector<int64_t>& ids = result.completion_ids;
  const auto stop = std::find_first_of(ids.begin(), ids.end(), stop_ids.begin(), stop_ids.end());
  if (stop == ids.end()) {
    return;
  }
  ids.erase(stop + 1, ids.end());
  if (result.logprobs_complete) {
    result.logprobs.resize(ids.size());
  }
  result.finish_reason = FinishReason::kStop;
}

}  // namespace

LlamaCppServer::LlamaCppServer(ServerOptions options) : HttpServer(std::move(options)) {}

Status LlamaCppServer::connect() { return health(); }

Status LlamaCppServer::check_sampling(const SamplingSettings& settings) const {
  const Status ranges = check_settings(settings);
  if (!ranges) {
    return ranges;
  }
  if (settings.temperature == 1 && settings.top_p == 1 && settings.top_k == 0) {
    return Success{};
  }
  return Error{Reason::kUnsupported,
               options().url +
                   ": llama-server's log-probs are those of the raw logits; sample at "
                   "temperature 1 without top_p and top_k"};
}

Result<GenerateResult> LlamaCppServer::try_generate(const GenerateRequest& request,
                                                    const std::string&, Deadline deadline) const {
  const Result<JsonAnswer> answer =
      http().post_json("/completion", completion_body(request), deadline);
  if (!answer) {
    return answer.error();
  }
  Result<GenerateResult> result = read_result(answer.value().value, request, options().vocab_size);
  if (!result) {
    return answer.value().wrong(result.error().reason, result.error().detail);
  }
  cut_at_stop(request.stop_ids, result.value());
  return result;
}

Status LlamaCppServer::load(const std::string& path, int64_t version, Deadline) {
  return Error{Reason::kUnsupported, options().url + ": llama-server cannot change its weights; " +
                                         "convert the checkpoint " + path + " (version " +
                                         std::to_string(version) +
                                         ") to GGUF and restart the server with it"};
}

Status LlamaCppServer::pause(PausePolicy) {
  return Error{Reason::kUnsupported, options().url + ": llama-server has no pause"};
}

Status LlamaCppServer::resume() {
  return Error{Reason::kUnsupported, options().url + ": llama-server has no pause"};
}

Result<std::string> LlamaCppServer::weight_version() {
  return Error{Reason::kUnsupported, options().url + ": llama-server does not label its weights"};
}

Capabilities LlamaCppServer::capabilities() const {
  return {.hot_weights = false,
          .pause_drain = false,
          .pause_abort = false,
          .pause_keep = false,
          .version_label = false,
          .cache_salt = true,  // cache_prompt is off: requests share nothing
          .stop_ids = true,
          .seed = true};
}

}  // namespace ringside::bridge
