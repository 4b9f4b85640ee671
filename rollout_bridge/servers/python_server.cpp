#include "rollout_bridge/servers/python_server.h"

#include "rollout_bridge/base/base64.h"
#include "rollout_bridge/servers/answer.h"

namespace ringside::bridge {
namespace {

using nlohmann::json;

// The single member of "results".
Result<const json*> only_result(const JsonAnswer& answer) {
  const json* results = member(answer.value, "results");
  if (results == nullptr || !results->is_array() || results->size() != 1) {
    return answer.wrong(Reason::kMalformed, "not one result");
  }
  return &(*results)[0];
}

Result<GenerateResult> read_result(const json& from, const GenerateRequest& request,
                                   int64_t vocab_size) {
  GenerateResult result;
  const std::string finish = text_member(from, "finish_reason").value_or("");
  if (finish != "stop" && finish != "length") {
    return Error{Reason::kMalformed, "no finish_reason that is known"};
  }
  result.finish_reason = finish == "stop" ? FinishReason::kStop : FinishReason::kLength;
  const json* ids = member(from, "completion_ids");
  const json* logprobs = member(from, "logprobs");
  const json* version = member(from, "version");
  if (ids == nullptr || logprobs == nullptr || version == nullptr ||
      !version->is_number_integer()) {
    return Error{Reason::kMalformed, "not completion_ids, logprobs and version"};
  }
  auto read = read_ids(*ids, "completion_ids", vocab_size);
  if (!read) {
    return read.error();
  }
  result.completion_ids = std::move(read).value();
  auto numbers = read_logprobs(*logprobs, "logprobs");
  if (!numbers) {
    return numbers.error();
  }
  result.logprobs = std::move(numbers).value();
  result.label = std::to_string(version->get<int64_t>());
  const Status status = check_result(result, request);
  if (!status) {
    return status.error();
  }
  return result;
}

}  // namespace

PythonServer::PythonServer(ServerOptions options) : HttpServer(std::move(options)) {}

Status PythonServer::connect() { return health(); }

Status PythonServer::check_sampling(const SamplingSettings& settings) const {
  return check_settings(settings);
}

Result<GenerateResult> PythonServer::try_generate(const GenerateRequest& request,
                                                  const std::string& request_id,
                                                  Deadline deadline) const {
  const json one{{"prompt_ids", request.prompt_ids},
                 {"max_tokens", request.max_tokens},
                 {"temperature", request.sampling.temperature},
                 {"top_p", request.sampling.top_p},
                 {"top_k", request.sampling.top_k},
                 {"stop_ids", request.stop_ids},
                 {"seed", request.seed},
                 {"request_id", request_id}};
  const Result<JsonAnswer> answer =
      http().post_json("/generate", {{"requests", json::array({one})}}, deadline);
  if (!answer) {
    return answer.error();
  }
  const Result<const json*> found = only_result(answer.value());
  if (!found) {
    return found.error();
  }
  Result<GenerateResult> result = read_result(*found.value(), request, options().vocab_size);
  if (!result) {
    return answer.value().wrong(result.error().reason, result.error().detail);
  }
  return result;
}

Result<std::vector<float>> PythonServer::score(const std::vector<int64_t>& ids) {
  const json body{{"requests", json::array({json{{"ids", ids}}})}};
  const Result<JsonAnswer> answer =
      http().post_json("/score", body, in(options().control_deadline));
  if (!answer) {
    return answer.error();
  }
  const Result<const json*> found = only_result(answer.value());
  if (!found) {
    return found.error();
  }
  const json* logprobs = member(*found.value(), "logprobs");
  if (logprobs == nullptr) {
    return answer.value().wrong(Reason::kMalformed, "no logprobs");
  }
  auto numbers = read_logprobs(*logprobs, "logprobs");
  if (!numbers) {
    return answer.value().wrong(numbers.error().reason, numbers.error().detail);
  }
  if (numbers.value().size() + 1 != ids.size()) {
    return answer.value().wrong(Reason::kMalformed, "not one log-prob for each id but the first");
  }
  return numbers;
}

Status PythonServer::pause(PausePolicy policy) {
  if (policy == PausePolicy::kDrain) {
    return Success{};
  }
  return Error{Reason::kUnsupported, options().url + ": requests can only be waited for"};
}

Status PythonServer::resume() { return Success{}; }

Status PythonServer::load(const std::string& path, int64_t version, Deadline deadline) {
  return command("/load", json{{"path", path}, {"version", version}}.dump(), deadline);
}

Status PythonServer::change_adapter(const std::string& path, int64_t version,
                                    const std::string& name, Deadline deadline) {
  if (!name.empty()) {
    return Error{Reason::kUnsupported,
                 options().url + ": it takes one adapter, not one of the name " + name};
  }
  return command("/load_adapter", json{{"path", path}, {"version", version}}.dump(), deadline);
}

Result<std::string> PythonServer::pull(const WeightSource& source, Deadline deadline) {
  const json body{{"address", source.address},
                  {"manifest", base64(source.manifest)},
                  {"run_id", source.run_id},
                  {"trainer_term", source.trainer_term},
                  {"timeout_s", std::chrono::duration<double>(options().load_deadline).count()}};
  const Result<JsonAnswer> answer = http().post_json("/pull", body, deadline);
  if (!answer) {
    return answer.error();
  }
  const auto root = text_member(answer.value().value, "root_hash");
  if (!root) {
    return answer.value().wrong(Reason::kMalformed, "no root_hash");
  }
  return *root;
}

Result<std::string> PythonServer::weight_version() {
  const Result<JsonAnswer> answer = http().get_json("/health", in(options().control_deadline));
  if (!answer) {
    return answer.error();
  }
  const json* version = member(answer.value().value, "version");
  if (version == nullptr || !version->is_number_integer()) {
    return answer.value().wrong(Reason::kMalformed, "no version");
  }
  return std::to_string(version->get<int64_t>());
}

Capabilities PythonServer::capabilities() const {
  return {.hot_weights = true,
          .pull = true,
          .adapters = true,
          .score = true,
          .pause_drain = true,
          .version_label = true,
          .cache_salt = true,  // the server keeps no cache between requests
          .stop_ids = true,
          .seed = true};
}

}  // namespace ringside::bridge
