#include "rl/worker/server_sessions.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "rl/report/log.h"
#include "rl/worker/answer_versions.h"
#include "rl/worker/make_server.h"
#include "rl/worker/server_connection.h"

namespace ringside::rl {

ServerSessions::ServerSessions(const Config& config, const WorkerSettings& settings,
                               const engine::ModelConfig& model, std::vector<int64_t> stops)
    : config_(config),
      worker_id_(settings.worker_id),
      vocab_size_(model.vocab_size),
      stops_(std::move(stops)),
      control_(connected_server(config, settings, vocab_size_, adapter_)),
      weights_(config, *control_),
      pool_([this] { return make_server(config_, vocab_size_, adapter_); },
            static_cast<std::size_t>(config.rollout.server_options.concurrency)) {}

std::string ServerSessions::install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) {
  installed_ = snapshot->manifest;
  const bridge::Status status = weights_.install(snapshot);
  if (!status) {
    log::warn("the server has not loaded version " + std::to_string(installed_.version) + ": " +
              status.error().detail);
    return "not installed";
  }
  in_doubt_ = false;
  return weights_.root_hash();
}

void ServerSessions::submit(std::vector<std::shared_ptr<WaitingRequest>> requests) {
  std::move(requests.begin(), requests.end(), std::back_inserter(held_));
  send_held();
}

void ServerSessions::send_held() {
  if (in_doubt_) {
    return;
  }
  for (auto& request : std::exchange(held_, {})) {
    const int64_t number = next_number_++;
    PoolRequest sent;
    sent.sample.group_id = number;  // the pool returns it with the answer
    sent.request = request_of(request->request(), number);
    waiting_[number] = std::move(request);
    pool_.submit(std::move(sent));
  }
}

bridge::GenerateRequest ServerSessions::request_of(const TokenRequest& request,
                                                   int64_t number) const {
  bridge::GenerateRequest sent;
  sent.prompt_ids = request.prompt;
  sent.max_tokens = request.max_tokens;
  sent.sampling = sampling_settings(request.sampling);
  sent.stop_ids = stops_;
  sent.seed = static_cast<int64_t>(request.seed >> 1);  // servers read it as a signed number
  const std::string version =
      std::to_string(installed_.trainer_term) + "." + std::to_string(installed_.version);
  sent.request_id = "session-" + std::to_string(number) + "-" + version + "-" + worker_id_;
  sent.cache_salt = installed_.run_id + "." + version;
  return sent;
}

bool ServerSessions::work() {
  std::vector<ServedAnswer> answers = pool_.take_all();
  for (ServedAnswer& served : answers) {
    const auto found = waiting_.find(served.sample.group_id);
    const auto waiting = found->second;
    waiting_.erase(found);
    answer(std::move(served), *waiting);
  }
  if (in_doubt_ && waiting_.empty()) {
    const bridge::Status status = weights_.verify();
    if (!status) {
      throw std::runtime_error("the server is not the one that weights were loaded into: " +
                               status.error().detail);
    }
    in_doubt_ = false;
    send_held();
  }
  return !answers.empty();
}

void ServerSessions::answer(ServedAnswer served, WaitingRequest& waiting) {
  const auto refuse = [&](const std::string& why) {
    log::warn("a request of a session could not be sampled: " + why);
    in_doubt_ = true;
    waiting.fail(std::make_exception_ptr(std::runtime_error(why)));
  };
  if (!served.result) {
    refuse(served.result.error().detail);
    return;
  }
  bridge::GenerateResult& result = served.result.value();
  const bool complete = result.finish_reason == bridge::FinishReason::kStop ||
                        result.finish_reason == bridge::FinishReason::kLength;
  const bool is_ours = !denies_version(result, installed_.version) &&
                       (!in_doubt_ || names_version(result, installed_.version));
  if (!complete || !is_ours) {
    refuse("the server ended it, or answered under other weights");
    return;
  }
  if (!result.logprobs_complete) {
    refuse("the answer has no log-probs of the sampling distribution");
    return;
  }
  const bool stopped = !result.completion_ids.empty() &&
                       std::ranges::find(stops_, result.completion_ids.back()) != stops_.end();
  waiting.answer({{std::move(result.completion_ids), std::move(result.logprobs), installed_.version,
                   installed_.trainer_term},
                  stopped});
}

}  // namespace ringside::rl
