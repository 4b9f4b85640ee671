// An HTTP server in a thread of its own. Torch-free.
#pragma once

#include <httplib.h>

#include <atomic>
#include <string>
#include <thread>

namespace ringside::rl {

class HttpThread {
 public:
  // Binds the address: port 0 takes a free one. Returns the port; 0 when it cannot be bound.
  int bind(const std::string& host, int port);
  // The same for "HOST:PORT". Returns "http://HOST:PORT" with the port that was taken; "" when it
  // is no such address or cannot be bound.
  std::string bind(const std::string& address);
  // Serves from now on. Call it once, after bind() and after all handlers are set.
  void start();
  // Blocks: until the requests that are being served are answered.
  ~HttpThread();

  // For handlers and limits, before start().
  httplib::Server& http() { return http_; }

 private:
  httplib::Server http_;
  std::atomic<bool> ended_{false};  // the thread no longer listens
  std::thread thread_;
};

}  // namespace ringside::rl
