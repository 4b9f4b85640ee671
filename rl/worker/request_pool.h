// Pool of concurrent requests to an inference server: threads, each with its own connection.
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

// The owner submits requests and takes answers. When running() is 0, no request is in flight and no
// answer waits: what is then done to the server can concern none of them.
// Thread safety: all methods.
class RequestPool {
 public:
  // Each thread creates and connects its own client at its first request, and again after a lost
  // connection. A client that cannot be created or connected makes an answer with that error.
  RequestPool(ServerFactory make_server, std::size_t threads);
  // Drops the requests that have not started.
  // Blocks: until the running requests have ended.
  ~RequestPool();

  // Queues a request. The caller bounds how many wait.
  // Blocks: never.
  void submit(PoolRequest request);
  // The answers received so far, in order of arrival.
  // Blocks: never.
  std::vector<ServedAnswer> take_all();
  // Takes back the requests that no thread has started.
  std::vector<PoolRequest> withdraw();
  // Number of requests submitted whose answers were not taken, without withdrawn ones.
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
