#include "rl/sampling/reward_server.h"

#include <cmath>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <utility>

#include "rl/report/http_thread.h"

namespace ringside::rl {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostBytes = std::size_t{16} << 20;  // of a request
constexpr int kThreads = 64;                               // requests that wait together

struct Job {
  sp::Document document;
  std::promise<double> reward;
};

}  // namespace

class RewardServer::Server {
 public:
  Server(const std::string& address, std::string model, int64_t batch_tokens, Calls calls)
      : model_(std::move(model)), batch_tokens_(batch_tokens), calls_(std::move(calls)) {
    httplib::Server& http = thread_.http();
    http.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    http.set_payload_max_length(kMostBytes);
    http.set_read_timeout(30);
    http.set_keep_alive_max_count(1);
    http.Get("/", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(ordered_json{{"model", model_}}.dump(), "application/json");
    });
    http.Post("/.*", [this](const httplib::Request& request, httplib::Response& response) {
      answer(request, response);
    });
    bind(address);
    thread_.start();
    judge_ = std::jthread([this](const std::stop_token& stop) { judge(stop); });
  }

  const std::string& url() const { return url_; }

 private:
  void bind(const std::string& address) {
    url_ = thread_.bind(address);
    if (url_.empty()) {
      throw std::runtime_error("the address " + address +
                               " cannot be bound; expected HOST:PORT with an address of this "
                               "machine and a free port, or port 0");
    }
  }

  void answer(const httplib::Request& request, httplib::Response& response) {
    const auto say = [&](int status, const ordered_json& body) {
      response.status = status;
      response.set_content(body.dump(-1, ' ', false, ordered_json::error_handler_t::replace),
                           "application/json");
    };
    std::future<double> reward;
    try {
      reward = wait_for_judge(read_document(request.body));
    } catch (const std::exception& error) {
      say(400, {{"error", error.what()}});
      return;
    }
    try {
      say(200, {{"reward", reward.get()}});
    } catch (const std::exception& error) {
      say(500, {{"error", error.what()}});
    }
  }

  sp::Document read_document(const std::string& text) {
    const ordered_json body = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!body.is_object() || !body.contains("prompt") || !body.contains("completion") ||
        !body["completion"].is_string()) {
      throw std::invalid_argument(
          "the body is no JSON object with \"prompt\" and a text \"completion\"");
    }
    const std::lock_guard lock(document_mutex_);
    return calls_.document(body["prompt"], body["completion"].get<std::string>());
  }

  std::future<double> wait_for_judge(sp::Document document) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(document), {}});
    waiting_changed_.notify_one();
    return waiting_.back().reward.get_future();
  }

  // The first that waits, and those behind it that fit beside it.
  std::vector<Job> next_batch(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    std::vector<Job> batch;
    if (!waiting_changed_.wait(lock, stop, [&] { return !waiting_.empty(); })) {
      return batch;
    }
    int64_t tokens = 0;
    while (!waiting_.empty()) {
      tokens += static_cast<int64_t>(waiting_.front().document.ids.size());
      if (!batch.empty() && tokens > batch_tokens_) {
        break;
      }
      batch.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    return batch;
  }

  void judge(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::vector<Job> batch = next_batch(stop);
      std::vector<sp::Document> documents;
      for (Job& job : batch) {
        documents.push_back(std::move(job.document));
      }
      if (!batch.empty()) {
        give_rewards(documents, batch);
      }
    }
  }

  void give_rewards(const std::vector<sp::Document>& documents, std::vector<Job>& batch) {
    std::vector<double> rewards;
    try {
      rewards = calls_.rewards(documents);
    } catch (...) {
      for (Job& job : batch) {
        job.reward.set_exception(std::current_exception());
      }
      return;
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (std::isfinite(rewards[i])) {
        batch[i].reward.set_value(rewards[i]);
      } else {
        batch[i].reward.set_exception(std::make_exception_ptr(
            std::runtime_error("the reward model gives " + std::to_string(rewards[i]))));
      }
    }
  }

  std::string model_;
  int64_t batch_tokens_;
  Calls calls_;
  std::string url_;
  std::mutex document_mutex_;
  std::mutex mutex_;  // guards waiting_
  std::condition_variable_any waiting_changed_;
  std::deque<Job> waiting_;
  std::jthread judge_;  // ends after thread_, whose requests wait for it
  HttpThread thread_;
};

RewardServer::RewardServer(const std::string& address, std::string model, int64_t batch_tokens,
                           Calls calls)
    : server_(std::make_unique<Server>(address, std::move(model), batch_tokens, std::move(calls))) {
}

RewardServer::~RewardServer() = default;

const std::string& RewardServer::url() const { return server_->url(); }

}  // namespace ringside::rl
