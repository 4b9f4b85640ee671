#include "rl/worker/request_pool.h"

#include <iterator>

namespace ringside::rl {
namespace {

// Sends one request; connects first if there is no connection.
bridge::Result<bridge::GenerateResult> ask(const ServerFactory& make_server,
                                           std::unique_ptr<bridge::InferenceServer>& server,
                                           const bridge::GenerateRequest& request) {
  try {
    if (!server) {
      auto fresh = make_server();
      const bridge::Status connected = fresh->connect();
      if (!connected) {
        return connected.error();
      }
      server = std::move(fresh);
    }
    auto result = server->generate(request);
    if (!result && result.error().reason == bridge::Reason::kClosed) {
      server.reset();  // the next answer may come from another process with other settings
    }
    return result;
  } catch (const std::exception& error) {
    return bridge::Error{bridge::Reason::kInvalidField, error.what()};
  }
}

}  // namespace

RequestPool::RequestPool(ServerFactory make_server, std::size_t threads)
    : make_server_(std::move(make_server)) {
  for (std::size_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

RequestPool::~RequestPool() {
  for (std::jthread& thread : threads_) {
    thread.request_stop();
  }
}

void RequestPool::submit(PoolRequest request) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(request));
  }
  wanted_.notify_one();
}

std::vector<ServedAnswer> RequestPool::take_all() {
  const std::lock_guard lock(mutex_);
  return std::exchange(answers_, {});
}

std::vector<PoolRequest> RequestPool::withdraw() {
  const std::lock_guard lock(mutex_);
  std::vector<PoolRequest> out(std::make_move_iterator(waiting_.begin()),
                               std::make_move_iterator(waiting_.end()));
  waiting_.clear();
  return out;
}

std::size_t RequestPool::running() const {
  const std::lock_guard lock(mutex_);
  return running_ + waiting_.size() + answers_.size();
}

void RequestPool::work(const std::stop_token& stop) {
  std::unique_ptr<bridge::InferenceServer> server;
  while (true) {
    std::unique_lock lock(mutex_);
    if (!wanted_.wait(lock, stop, [this] { return !waiting_.empty(); }) || stop.stop_requested()) {
      return;
    }
    PoolRequest next = std::move(waiting_.front());
    waiting_.pop_front();
    ++running_;
    lock.unlock();
    auto result = ask(make_server_, server, next.request);
    lock.lock();
    answers_.push_back({next.sample, std::move(next.request.prompt_ids), std::move(result)});
    --running_;
  }
}

}  // namespace ringside::rl
