#include "rollout_bridge/servers/sglang.h"

#include <cmath>

#include "rollout_bridge/servers/answer.h"

namespace ringside::bridge {
namespace {

using nlohmann::json;

constexpr float kProbeNoise = 0.02F;  // as in vllm.cpp

json generate_body(const GenerateRequest& request, const std::string& request_id) {
  const SamplingSettings& sampling = request.sampling;
  json body{{"input_ids", request.prompt_ids},
            {"sampling_params",
             {{"max_new_tokens", request.max_tokens},
              {"temperature", sampling.temperature},
              {"top_p", sampling.top_p},
              {"top_k", sampling.top_k == 0 ? -1 : sampling.top_k},
              {"min_p", 0.0},
              {"repetition_penalty", 1.0},
              {"presence_penalty", 0.0},
              {"frequency_penalty", 0.0},
              {"stop_token_ids", request.stop_ids},
              {"skip_special_tokens", false},
              {"no_stop_trim", true}}},
            {"return_logprob", true},
            {"logprob_start_len", -1},
            {"top_logprobs_num", 0},
            {"rid", request_id},
            {"stream", false}};
  if (request.experts_per_token > 0) {
    body["return_routed_experts"] = true;
  }
  return body;
}

// Parses {"type": "stop" | "length" | "abort", ...}.
std::optional<FinishReason> finish_of(const json& meta) {
  const json* reason = member(meta, "finish_reason");
  const std::string type = reason == nullptr ? "" : text_member(*reason, "type").value_or("");
  if (type == "stop") {
    return FinishReason::kStop;
  }
  if (type == "length") {
    return FinishReason::kLength;
  }
  if (type == "abort") {
    return FinishReason::kAborted;
  }
  return std::nullopt;
}

// Parses [[logprob, id, text or null], ...].
Status read_tokens(const json& list, int64_t vocab_size, GenerateResult& result) {
  if (!list.is_array()) {
    return Error{Reason::kMalformed, "output_token_logprobs is no array"};
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string name = "output_token_logprobs[" + std::to_string(i) + "]";
    if (!list[i].is_array() || list[i].size() < 2) {
      return Error{Reason::kMalformed, name + " is no [logprob, id, text]"};
    }
    const Result<int64_t> id = read_id(list[i][1], name, vocab_size);
    if (!id) {
      return id.error();
    }
    const Result<float> logprob = read_logprob(list[i][0], name);
    if (!logprob) {
      return logprob.error();
    }
    result.completion_ids.push_back(id.value());
    result.logprobs.push_back(logprob.value());
  }
  return Success{};
}

// The table of routed experts, whose rows begin at routed_experts_start_len. The last token has no
// row.
Status read_routed(const json& meta, const GenerateRequest& request, GenerateResult& result) {
  const auto table = text_member(meta, "routed_experts");
  if (!table) {
    return Error{Reason::kUnsupported,
                 "no meta_info.routed_experts; start the server with "
                 "--enable-return-routed-experts"};
  }
  const json* start = member(meta, "routed_experts_start_len");
  const auto tokens =
      static_cast<int64_t>(request.prompt_ids.size() + result.completion_ids.size());
  const Result<int64_t> first = start == nullptr
                                    ? Result<int64_t>(int64_t{0})
                                    : read_id(*start, "routed_experts_start_len", tokens);
  if (!first) {
    return first.error();
  }
  auto routed = read_int32_table(*table, tokens - 1 - first.value(), request.experts_per_token);
  if (!routed) {
    return routed.error();
  }
  result.routed = std::move(routed).value();
  result.routed.first_row = first.value();
  return Success{};
}

Result<GenerateResult> read_result(const json& answer, const GenerateRequest& request,
                                   int64_t vocab_size) {
  const json* meta = member(answer, "meta_info");
  if (meta == nullptr) {
    return Error{Reason::kMalformed, "no meta_info"};
  }
  GenerateResult result;
  const auto finish = finish_of(*meta);
  if (!finish) {
    return Error{Reason::kMalformed, "no finish_reason that is known"};
  }
  result.finish_reason = *finish;
  result.label = text_member(*meta, "weight_version");
  const json* tokens = member(*meta, "output_token_logprobs");
  const json* count = member(*meta, "completion_tokens");
  if (tokens != nullptr) {
    const Status status = read_tokens(*tokens, vocab_size, result);
    if (!status) {
      return status.error();
    }
  } else if (*finish != FinishReason::kAborted || (count != nullptr && *count != 0)) {
    // An abort before the first token has none.
    return Error{Reason::kMalformed, "no output_token_logprobs although return_logprob was set"};
  }
  // The ids are listed with the log-probs; output_ids and the count must agree with them.
  if (count != nullptr && *count != result.completion_ids.size()) {
    return Error{Reason::kMalformed, std::to_string(result.logprobs.size()) +
                                         " log-probs for completion_tokens " + count->dump()};
  }
  const json* ids = member(answer, "output_ids");
  if (ids != nullptr && *ids != json(result.completion_ids)) {
    return Error{Reason::kMalformed, "output_ids are not the tokens of output_token_logprobs"};
  }
  if (const Status status = check_result(result, request); !status) {
    return status.error();
  }
  if (request.experts_per_token > 0 && *finish != FinishReason::kAborted) {
    if (const Status status = read_routed(*meta, request, result); !status) {
      return status.error();
    }
  }
  return result;
}

}  // namespace

SglangServer::SglangServer(ServerOptions options) : HttpServer(std::move(options)) {}

Result<GenerateResult> SglangServer::try_generate(const GenerateRequest& request,
                                                  const std::string& request_id,
                                                  Deadline deadline) const {
  const Result<JsonAnswer> answer =
      http().post_json("/generate", generate_body(request, request_id), deadline);
  if (!answer) {
    return answer.error();
  }
  Result<GenerateResult> result = read_result(answer.value().value, request, options().vocab_size);
  if (!result) {
    return answer.value().wrong(result.error().reason, result.error().detail);
  }
  return result;
}

Result<float> SglangServer::top_logprob(double temperature, Deadline deadline) const {
  GenerateRequest request;
  request.prompt_ids = {1 % options().vocab_size};
  request.max_tokens = 1;
  request.sampling.temperature = temperature;
  json body = generate_body(request, "probe-t" + std::to_string(static_cast<int>(temperature)));
  body["top_logprobs_num"] = 1;
  const Result<JsonAnswer> answer = http().post_json("/generate", body, deadline);
  if (!answer) {
    return answer.error();
  }
  // meta_info.output_top_logprobs: per token a list of [logprob, id, text or null], the best first.
  const json* meta = member(answer.value().value, "meta_info");
  const json* tops = meta == nullptr ? nullptr : member(*meta, "output_top_logprobs");
  const bool shaped = tops != nullptr && tops->is_array() && tops->size() == 1 &&
                      (*tops)[0].is_array() && !(*tops)[0].empty() && (*tops)[0][0].is_array() &&
                      !(*tops)[0][0].empty();
  if (!shaped) {
    return answer.value().wrong(Reason::kMalformed, "no output_top_logprobs");
  }
  const Result<float> top = read_logprob((*tops)[0][0][0], "output_top_logprobs");
  if (!top) {
    return answer.value().wrong(top.error().reason, top.error().detail);
  }
  return top;
}

Status SglangServer::connect() {
  follows_temperature_.reset();
  const Status alive = health();
  if (!alive) {
    return alive;
  }
  const Deadline deadline = in(options().control_deadline);
  const Result<float> plain = top_logprob(1.0, deadline);
  if (!plain) {
    return plain.error();
  }
  const Result<float> hot = top_logprob(2.0, deadline);
  if (!hot) {
    return hot.error();
  }
  follows_temperature_ = hot.value() < plain.value() - kProbeNoise;
  return Success{};
}

Status SglangServer::check_sampling(const SamplingSettings& settings) const {
  const Status ranges = check_settings(settings);
  if (!ranges) {
    return ranges;
  }
  if (!follows_temperature_) {
    return Error{Reason::kUnsupported,
                 options().url + ": connect() has not found out what its log-probs are of"};
  }
  if (settings.top_p != 1 || settings.top_k != 0) {
    return Error{Reason::kUnsupported, options().url +
                                           ": its log-probs are those before top_p and "
                                           "top_k; sample without them"};
  }
  if (settings.temperature != 1 && !*follows_temperature_) {
    return Error{Reason::kUnsupported,
                 options().url +
                     ": its log-probs do not follow the temperature; start it without "
                     "SGLANG_RETURN_ORIGINAL_LOGPROB, or sample at temperature 1"};
  }
  return Success{};
}

Status SglangServer::pause(PausePolicy policy) {
  if (policy == PausePolicy::kDrain) {
    return Error{Reason::kUnsupported, options().url +
                                           ": SGLang has no pause that drains; wait for "
                                           "the requests under way, then abort"};
  }
  const json body{{"mode", policy == PausePolicy::kAbort ? "abort" : "retract"}};
  return command("/pause_generation", body.dump(), in(options().pause_deadline));
}

Status SglangServer::resume() {
  const json body{{"torch_empty_cache", true}};
  return command("/continue_generation", body.dump(), in(options().control_deadline));
}

Status SglangServer::load(const std::string& path, int64_t version, Deadline deadline) {
  const Status flushed = command("/flush_cache", "", deadline);
  if (!flushed) {
    return flushed;
  }
  // keep_pause: the caller resumes.
  const json body{{"model_path", path},          {"load_format", nullptr},
                  {"abort_all_requests", false}, {"weight_version", std::to_string(version)},
                  {"flush_cache", true},         {"keep_pause", true}};
  const Result<JsonAnswer> answer = http().post_json("/update_weights_from_disk", body, deadline);
  if (!answer) {
    return answer.error();
  }
  const json* success = member(answer.value().value, "success");
  if (success != nullptr && *success == true) {
    return Success{};
  }
  return answer.value().wrong(Reason::kClosed, "no success");
}

Result<std::vector<float>> SglangServer::score(const std::vector<int64_t>& ids) {
  GenerateRequest request;
  request.prompt_ids = ids;
  request.max_tokens = 1;
  json body = generate_body(request, "score");
  body.erase("rid");  // two requests may run at once: the server assigns the ids
  body["logprob_start_len"] = 0;
  const Result<JsonAnswer> answer =
      http().post_json("/generate", body, in(options().control_deadline));
  if (!answer) {
    return answer.error();
  }
  // [[null, id, text], [logprob, id, text], ...]: the first token has no log-prob.
  const json* meta = member(answer.value().value, "meta_info");
  const json* list = meta == nullptr ? nullptr : member(*meta, "input_token_logprobs");
  if (list == nullptr || !list->is_array() || list->size() != ids.size()) {
    return answer.value().wrong(Reason::kMalformed,
                                "not one entry of input_token_logprobs a token");
  }
  std::vector<float> scores;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const json& entry = (*list)[i];
    if (!entry.is_array() || entry.size() < 2 || entry[1] != ids[i]) {
      return answer.value().wrong(Reason::kMalformed,
                                  "input_token_logprobs are not of the tokens that were sent");
    }
    if (i == 0) {
      continue;
    }
    const Result<float> number = read_logprob(entry[0], "input_token_logprobs");
    if (!number) {
      return answer.value().wrong(number.error().reason, number.error().detail);
    }
    scores.push_back(number.value());
  }
  return scores;
}

Result<std::string> SglangServer::weight_version() {
  const Result<JsonAnswer> answer = http().get_json("/server_info", in(options().control_deadline));
  if (!answer) {
    return answer.error();
  }
  const auto label = text_member(answer.value().value, "weight_version");
  if (!label) {
    return answer.value().wrong(Reason::kMalformed, "no weight_version");
  }
  return *label;
}

Capabilities SglangServer::capabilities() const {
  return {.hot_weights = true,
          .score = true,
          .pause_drain = false,
          .pause_abort = true,
          .pause_keep = true,
          .version_label = true,
          .cache_salt = false,
          .stop_ids = true,
          .seed = false,
          .routed_experts = true};
}

}  // namespace ringside::bridge
