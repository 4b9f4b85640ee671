#include "rollout_bridge/servers/vllm.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "rollout_bridge/servers/answer.h"
#include "rollout_bridge/servers/vllm_choice.h"
#include "rollout_bridge/servers/vllm_token_route.h"

namespace ringside::bridge {
namespace {

using nlohmann::json;

constexpr const char* kCompletions = "/v1/completions";
// Below every difference that the probe looks for, above the rounding of a model in bfloat16.
constexpr float kProbeNoise = 0.02F;

// The single choice of an answer.
Result<const json*> only_choice(const JsonAnswer& answer) {
  const json* choices = member(answer.value, "choices");
  if (choices == nullptr || !choices->is_array() || choices->size() != 1) {
    return answer.wrong(Reason::kMalformed, "not one choice");
  }
  return &(*choices)[0];
}

// Checks logprobs.tokens, which are "token_id:N" on request, against token_ids.
bool same_tokens(const json& logprobs, const std::vector<int64_t>& ids) {
  const json* tokens = member(logprobs, "tokens");
  if (tokens == nullptr) {
    return true;
  }
  if (!tokens->is_array() || tokens->size() != ids.size()) {
    return false;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if ((*tokens)[i] != "token_id:" + std::to_string(ids[i])) {
      return false;
    }
  }
  return true;
}

Result<std::vector<LabelSpan>> read_spans(const json& choice) {
  std::vector<LabelSpan> spans;
  const json* list = member(choice, "weight_versions");
  if (list == nullptr) {
    return spans;
  }
  const Error error{Reason::kMalformed, "weight_versions is no list of {version, start, end}"};
  if (!list->is_array()) {
    return error;
  }
  for (const json& item : *list) {
    const auto label = text_member(item, "version");
    const json* start = member(item, "start");
    const json* end = member(item, "end");
    if (!label || start == nullptr || end == nullptr || !start->is_number_integer() ||
        !end->is_number_integer()) {
      return error;
    }
    spans.push_back({*label, start->get<int64_t>(), end->get<int64_t>()});
  }
  return spans;
}

// Reads one choice. The error does not contain its place in the answer.
Result<GenerateResult> read_choice(const json& choice, const GenerateRequest& request,
                                   int64_t vocab_size) {
  GenerateResult result;
  const auto finish = vllm_finish(text_member(choice, "finish_reason").value_or(""));
  if (!finish) {
    return Error{Reason::kMalformed, "no finish_reason that is known"};
  }
  result.finish_reason = *finish;
  const json* prompt = member(choice, "prompt_token_ids");
  if (prompt != nullptr && *prompt != json(request.prompt_ids)) {
    return Error{Reason::kInvalidField, "prompt_token_ids is not the prompt that was sent"};
  }
  const json* ids = member(choice, "token_ids");
  const json* logprobs = member(choice, "logprobs");
  if (ids == nullptr && *finish == FinishReason::kAborted && logprobs == nullptr) {
    return result;
  }
  if (ids == nullptr) {
    return Error{Reason::kMalformed, "no token_ids although return_token_ids was set"};
  }
  auto read = read_ids(*ids, "token_ids", vocab_size);
  if (!read) {
    return read.error();
  }
  result.completion_ids = std::move(read).value();
  const json* values = logprobs == nullptr ? nullptr : member(*logprobs, "token_logprobs");
  if (values != nullptr) {
    auto numbers = read_logprobs(*values, "token_logprobs");
    if (!numbers) {
      return numbers.error();
    }
    result.logprobs = std::move(numbers).value();
    if (!same_tokens(*logprobs, result.completion_ids)) {
      return Error{Reason::kMalformed, "logprobs.tokens are not the tokens of token_ids"};
    }
  }
  const Status routes = read_vllm_routes(choice, request, result);
  if (!routes) {
    return routes.error();
  }
  auto spans = read_spans(choice);
  if (!spans) {
    return spans.error();
  }
  result.versions = std::move(spans).value();
  const Status status = check_result(result, request);
  if (!status) {
    return status.error();
  }
  return result;
}

}  // namespace

std::string SelectedAdapter::get(const std::string& adapter) const {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(adapter);
  return found != names_.end() ? found->second : "";
}

std::string SelectedAdapter::exchange(const std::string& adapter, std::string name) {
  const std::lock_guard lock(mutex_);
  return std::exchange(names_[adapter], std::move(name));
}

VllmServer::VllmServer(ServerOptions options, std::string model, VllmWeights weights,
                       std::shared_ptr<SelectedAdapter> adapter)
    : HttpServer(std::move(options)),
      model_(std::move(model)),
      adapter_(std::move(adapter)),
      weights_(weights) {}

std::string VllmServer::served_name(const std::string& adapter) const {
  const std::string name = adapter_->get(adapter);
  return name.empty() && adapter.empty() ? model_ : name;
}

Error VllmServer::not_loaded(const std::string& adapter) const {
  return {Reason::kInvalidField, options().url + ": the adapter " + adapter + " is not loaded"};
}

json VllmServer::completion(const GenerateRequest& request) const {
  json body = vllm_sampling(request);
  body.update({{"model", served_name(request.adapter)},
               {"prompt", json::array({request.prompt_ids})},
               {"return_token_ids", true},
               {"return_tokens_as_token_ids", true},
               {"stream", false},
               {"cache_salt", request.cache_salt},
               {"request_id", request.request_id}});
  return body;
}

Result<GenerateResult> VllmServer::try_generate(const GenerateRequest& request,
                                                const std::string& request_id,
                                                Deadline deadline) const {
  if (served_name(request.adapter).empty()) {
    return not_loaded(request.adapter);
  }
  const bool by_tokens = !request.images.empty();
  json body =
      by_tokens ? vllm_token_request(request, served_name(request.adapter)) : completion(request);
  body["request_id"] = request_id;
  const Result<JsonAnswer> answer =
      http().post_json(by_tokens ? kVllmTokenRoute : kCompletions, body, deadline);
  if (!answer) {
    return answer.error();
  }
  const Result<const json*> choice = only_choice(answer.value());
  if (!choice) {
    return choice.error();
  }
  Result<GenerateResult> result =
      by_tokens ? read_vllm_token_choice(*choice.value(), request, options().vocab_size)
                : read_choice(*choice.value(), request, options().vocab_size);
  if (!result) {
    return answer.value().wrong(result.error().reason, result.error().detail);
  }
  result.value().label = text_member(answer.value().value, "weight_version");
  return result;
}

Result<float> VllmServer::top_logprob(double temperature, int64_t top_k, Deadline deadline) const {
  GenerateRequest request;
  request.prompt_ids = {1 % options().vocab_size};
  request.max_tokens = 1;
  request.sampling.temperature = temperature;
  request.sampling.top_k = top_k;
  request.request_id =
      "probe-t" + std::to_string(static_cast<int>(temperature)) + "-k" + std::to_string(top_k);
  // Its own salt, so that later requests do not reuse the probe's cache.
  request.cache_salt = "probe";
  json body = completion(request);
  body["logprobs"] = 1;
  body["model"] = model_;  // a server that was restarted has no adapter
  const Result<JsonAnswer> answer = http().post_json(kCompletions, body, deadline);
  if (!answer) {
    return answer.error();
  }
  const Result<const json*> choice = only_choice(answer.value());
  if (!choice) {
    return choice.error();
  }
  const json* logprobs = member(*choice.value(), "logprobs");
  const json* tops = logprobs == nullptr ? nullptr : member(*logprobs, "top_logprobs");
  if (tops == nullptr || !tops->is_array() || tops->size() != 1 || !(*tops)[0].is_object() ||
      (*tops)[0].empty()) {
    return answer.value().wrong(Reason::kMalformed, "no logprobs.top_logprobs of one token");
  }
  // The sampled token is listed beside the top one.
  std::optional<float> top;
  for (const json& value : (*tops)[0]) {
    const Result<float> number = read_logprob(value, "top_logprobs");
    if (!number) {
      return answer.value().wrong(number.error().reason, number.error().detail);
    }
    top = std::max(top.value_or(number.value()), number.value());
  }
  return *top;
}

Status VllmServer::probe_token_route(Deadline deadline) {
  GenerateRequest request;
  request.prompt_ids = {1 % options().vocab_size};
  request.max_tokens = 1;
  request.request_id = "probe-tokens";
  request.cache_salt = "probe";
  const Result<JsonAnswer> answer =
      http().post_json(kVllmTokenRoute, vllm_token_request(request, model_), deadline);
  if (!answer && answer.error().reason == Reason::kUnsupported) {
    return Error{Reason::kUnsupported,
                 answer.error().detail + "; prompts with images need this route of vLLM 0.24"};
  }
  if (!answer) {
    return answer.error();
  }
  const Result<const json*> choice = only_choice(answer.value());
  if (!choice) {
    return choice.error();
  }
  const auto result = read_vllm_token_choice(*choice.value(), request, options().vocab_size);
  if (!result) {
    return answer.value().wrong(result.error().reason, result.error().detail);
  }
  has_token_route_ = true;
  return Success{};
}

Status VllmServer::connect() {
  logprobs_of_ = LogprobsOf::kUnknown;
  has_token_route_ = false;
  const Status alive = health();
  if (!alive) {
    return alive;
  }
  const Deadline deadline = in(options().control_deadline);
  const Result<HttpAnswer> label = http().get("/weight_info", deadline);
  if (!label && label.error().reason != Reason::kUnsupported) {
    return label.error();
  }
  has_label_ = label.ok();
  extended_ranks_ = count_extended_ranks(deadline);
  const Result<float> plain = top_logprob(1.0, 0, deadline);
  if (!plain) {
    return plain.error();
  }
  const Result<float> hot = top_logprob(2.0, 0, deadline);
  if (!hot) {
    return hot.error();
  }
  const Result<float> cut = top_logprob(2.0, 1, deadline);
  if (!cut) {
    return cut.error();
  }
  const bool colder = hot.value() < plain.value() - kProbeNoise;
  if (colder && std::abs(cut.value()) < 1e-3F && plain.value() < -kProbeNoise) {
    logprobs_of_ = LogprobsOf::kSampled;
  } else if (std::abs(hot.value() - plain.value()) < kProbeNoise &&
             std::abs(cut.value() - plain.value()) < kProbeNoise) {
    logprobs_of_ = LogprobsOf::kModel;
  } else {
    return Error{Reason::kUnsupported, options().url + ": the top token's log-prob is " +
                                           std::to_string(plain.value()) + " at temperature 1, " +
                                           std::to_string(hot.value()) + " at 2 and " +
                                           std::to_string(cut.value()) +
                                           " at 2 with top_k 1; that is neither "
                                           "--logprobs-mode processed_logprobs nor raw_logprobs"};
  }
  return options().images ? probe_token_route(deadline) : Status(Success{});
}

Status VllmServer::check_sampling(const SamplingSettings& settings) const {
  const Status ranges = check_settings(settings);
  if (!ranges) {
    return ranges;
  }
  if (logprobs_of_ == LogprobsOf::kUnknown) {
    return Error{Reason::kUnsupported,
                 options().url + ": connect() has not found out what its log-probs are of"};
  }
  const bool plain = settings.temperature == 1 && settings.top_p == 1 && settings.top_k == 0;
  if (logprobs_of_ == LogprobsOf::kSampled || plain) {
    return Success{};
  }
  return Error{
      Reason::kUnsupported,
      options().url +
          ": its log-probs are those before temperature, top_p and top_k; start "
          "it with --logprobs-mode processed_logprobs, or sample at temperature 1 without top_p "
          "and top_k"};
}

Status VllmServer::pause(PausePolicy policy) {
  // Kept requests continue with their own cache; the salt separates entries of the prefix cache.
  const char* query = policy == PausePolicy::kDrain   ? "/pause?mode=wait&clear_cache=true"
                      : policy == PausePolicy::kAbort ? "/pause?mode=abort&clear_cache=true"
                                                      : "/pause?mode=keep&clear_cache=false";
  return command(query, "", in(options().pause_deadline));
}

Status VllmServer::resume() { return command("/resume", "", in(options().control_deadline)); }

Result<std::vector<float>> VllmServer::score(const std::vector<int64_t>& ids) {
  return score_under("", ids);
}

Result<std::vector<float>> VllmServer::score_under(const std::string& adapter,
                                                   const std::vector<int64_t>& ids) {
  GenerateRequest request;
  request.adapter = adapter;
  if (served_name(adapter).empty()) {
    return not_loaded(adapter);
  }
  request.prompt_ids = ids;
  request.max_tokens = 1;
  request.request_id = "score";
  request.cache_salt = "score";
  json body = completion(request);
  body["prompt_logprobs"] = 0;
  const Result<JsonAnswer> answer =
      http().post_json(kCompletions, body, in(options().control_deadline));
  if (!answer) {
    return answer.error();
  }
  const Result<const json*> choice = only_choice(answer.value());
  if (!choice) {
    return choice.error();
  }
  // Per token null (the first) or {"<id>": {"logprob": ...}}.
  const json* list = member(*choice.value(), "prompt_logprobs");
  if (list == nullptr || !list->is_array() || list->size() != ids.size()) {
    return answer.value().wrong(Reason::kMalformed, "not one entry of prompt_logprobs a token");
  }
  std::vector<float> scores;
  for (std::size_t i = 1; i < ids.size(); ++i) {
    const json* token = member((*list)[i], std::to_string(ids[i]).c_str());
    const json* value = token == nullptr ? nullptr : member(*token, "logprob");
    if (value == nullptr) {
      return answer.value().wrong(Reason::kMalformed, "no logprob of a token of the prompt");
    }
    const Result<float> number = read_logprob(*value, "prompt_logprobs");
    if (!number) {
      return answer.value().wrong(number.error().reason, number.error().detail);
    }
    scores.push_back(number.value());
  }
  return scores;
}

Capabilities VllmServer::capabilities() const {
  return {.hot_weights = true,
          .pull = weights_ == VllmWeights::kEngine || extended_ranks_ > 0,
          .adapters = true,
          .score = true,
          .pause_drain = true,
          .pause_abort = true,
          .pause_keep = true,
          .version_label = has_label_,
          .cache_salt = true,
          .stop_ids = true,
          .seed = true,
          .routed_experts = true,
          .images = has_token_route_};
}

}  // namespace ringside::bridge
