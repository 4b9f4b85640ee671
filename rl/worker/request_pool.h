// Requests to an inference server, several at a time: threads of its own, each with a connection of
// its own.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "rl/worker/server_loop.h"
#include "rollout_bridge/servers/inference_server.h"

namespace ringside::rl {

struct PoolRequest {
  bridge::GrantedSample sample;
  bridge::GenerateRequest request;
};

using ServerFactory = std::function<std::unique_ptr<bridge::InferenceServer>()>;

// Thread-safe. The owner submits and takes; what is running is only ever between the two, so that
// when running() is 0 and take_all() returns nothing, no request made before is under way.
class RequestPool {
 public:
  // Each thread makes and connects a server of its own when its first request comes.
  RequestPool(ServerFactory make_server, std::size_t threads);
  // Waits for the requests that are running; those that are not are dropped.
  ~RequestPool();

  void submit(PoolRequest request);
  // Answers so far, in the order they came. Does not wait.
  std::vector<ServedAnswer> take_all();
  // Requests no thread has begun; they are the caller's again.
  std::vector<PoolRequest> withdraw();
  // Submitted and not yet among the answers (withdrawn ones apart).
  std::size_t running() const;

 private:
  void work(const std::stop_token& stop);

  ServerFactory make_server_;
  mutable std::mutex mutex_;
  std::condition_variable_any wanted_;
  std::deque<PoolRequest> waiting_;
  std::vector<ServedAnswer> answers_;
  std::size_t running_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace ringside::rl
