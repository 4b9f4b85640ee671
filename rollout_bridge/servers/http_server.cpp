#include "rollout_bridge/servers/http_server.h"

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "rollout_bridge/servers/answer.h"

namespace ringside::bridge {
namespace {

bool worth_another_try(const Error& error, bool again_after_close) {
  return error.reason == Reason::kBusy || (error.reason == Reason::kClosed && again_after_close);
}

}  // namespace

Result<std::string> InferenceServer::pull_weights(const WeightSource&) {
  return Error{Reason::kUnsupported, "this server does not take weights from the bridge"};
}

Status InferenceServer::load_adapter(const std::string&, int64_t, const std::string&) {
  return Error{Reason::kUnsupported, "this server does not take adapters"};
}

Result<std::vector<float>> InferenceServer::score_under(const std::string& adapter,
                                                        const std::vector<int64_t>& ids) {
  if (adapter.empty()) {
    return score(ids);
  }
  return Error{Reason::kUnsupported, "this server does not score texts under several adapters"};
}

Result<std::vector<float>> InferenceServer::score(const std::vector<int64_t>&) {
  return Error{Reason::kUnsupported, "this server does not score texts"};
}

HttpServer::HttpServer(ServerOptions options)
    : options_(std::move(options)),
      http_(options_.url, options_.api_key, options_.max_response_bytes) {
  const auto need = [](bool good, const char* name, int64_t value) {
    if (good) {
      return;
    }
    throw std::invalid_argument(std::string("ServerOptions::") + name + " is " +
                                std::to_string(value) + "; expected more");
  };
  need(options_.vocab_size > 0, "vocab_size", options_.vocab_size);
  need(options_.generate_tries >= 1, "generate_tries", options_.generate_tries);
  need(options_.generate_deadline.count() > 0, "generate_deadline",
       options_.generate_deadline.count());
  need(options_.control_deadline.count() > 0, "control_deadline",
       options_.control_deadline.count());
  need(options_.pause_deadline.count() > 0, "pause_deadline", options_.pause_deadline.count());
  need(options_.load_deadline.count() > 0, "load_deadline", options_.load_deadline.count());
}

Deadline HttpServer::in(std::chrono::milliseconds span) {
  return std::chrono::steady_clock::now() + span;
}

Status HttpServer::command(const std::string& path, const std::string& body,
                           Deadline deadline) const {
  const Result<HttpAnswer> answer = http_.post(path, body, deadline);
  if (!answer) {
    return answer.error();
  }
  return Success{};
}

Status HttpServer::check_server_limits(const GenerateRequest&) const { return Success{}; }

Result<GenerateResult> HttpServer::generate(const GenerateRequest& request) {
  if (doubt_) {
    return Error{Reason::kClosed, options_.url + ": loading weights of version " +
                                      std::to_string(*doubt_) +
                                      " failed; which ones it holds is not known"};
  }
  const Status sampling =
      request.reads_logprobs ? check_sampling(request.sampling) : check_settings(request.sampling);
  for (const Status& status :
       {check_request(request, options_.vocab_size), sampling, check_server_limits(request)}) {
    if (!status) {
      return status.error();
    }
  }
  if (!request.images.empty() && !capabilities().images) {
    return Error{Reason::kUnsupported, options_.url + ": it does not take images"};
  }
  const Deadline deadline = in(options_.generate_deadline);
  auto pause = options_.first_pause;
  for (int i = 0;; ++i) {
    const std::string id = request.request_id + (i == 0 ? "" : "-try" + std::to_string(i));
    Result<GenerateResult> result = try_generate(request, id, deadline);
    if (result) {
      return result;
    }
    const bool last = i + 1 == options_.generate_tries;
    if (last || !worth_another_try(result.error(), options_.again_after_close) ||
        std::chrono::steady_clock::now() + pause >= deadline) {
      return result;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 4, options_.longest_pause);
  }
}

Status HttpServer::check_source(const std::string& path, int64_t version) const {
  if (path.starts_with('/') && version >= 0) {
    return Success{};
  }
  return Error{Reason::kInvalidField, "weights of version " + std::to_string(version) + " at '" +
                                          path +
                                          "'; expected a version of 0 or more and an "
                                          "absolute path"};
}

Status HttpServer::load_adapter(const std::string& path, int64_t version, const std::string& name) {
  if (const Status fits = check_source(path, version); !fits) {
    return fits;
  }
  if (!capabilities().adapters) {
    return Error{Reason::kUnsupported, options_.url + ": it does not take adapters"};
  }
  doubt_ = version;
  Status status = change_adapter(path, version, name, in(options_.load_deadline));
  if (status) {
    doubt_.reset();
  }
  return status;
}

Status HttpServer::change_adapter(const std::string&, int64_t, const std::string&, Deadline) {
  return Error{Reason::kUnsupported, options_.url + ": it does not take adapters"};
}

Status HttpServer::load_weights_from_disk(const std::string& path, int64_t version) {
  if (const Status fits = check_source(path, version); !fits) {
    return fits;
  }
  if (!capabilities().hot_weights) {
    return load(path, version, in(options_.load_deadline));
  }
  doubt_ = version;
  Status status = load(path, version, in(options_.load_deadline));
  if (status) {
    doubt_.reset();
  }
  return status;
}

Result<std::string> HttpServer::pull_weights(const WeightSource& source) {
  if (!capabilities().pull) {
    return Error{Reason::kUnsupported, options_.url + ": it does not take weights from the bridge"};
  }
  doubt_ = source.version;
  auto root = pull(source, in(options_.load_deadline));
  if (root) {
    doubt_.reset();
  }
  return root;
}

Result<std::string> HttpServer::pull(const WeightSource&, Deadline) {
  return Error{Reason::kUnsupported, options_.url + ": it does not take weights from the bridge"};
}

Status HttpServer::health() {
  const Result<HttpAnswer> answer = http_.get("/health", in(options_.control_deadline));
  if (!answer) {
    return answer.error();
  }
  return Success{};
}

}  // namespace ringside::bridge
