#include "rl/report/http_thread.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>

namespace ringside::rl {

int HttpThread::bind(const std::string& host, int port) {
  socket_t bound = INVALID_SOCKET;
  // Without SO_REUSEPORT, the library's default, with which two runs could share one port.
  http_.set_socket_options([&bound](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    bound = socket;
  });
  if (port == 0) {
    port = std::max(0, http_.bind_to_any_port(host));
  } else if (!http_.bind_to_port(host, port)) {
    port = 0;
  }
  http_.set_socket_options([](socket_t) {});
  if (port != 0) {
    // The library lets five connections wait. Of clients that connect at once the others would be
    // reset, or try again after a second.
    constexpr int kWaitingConnections = 1024;
    listen(bound, kWaitingConnections);
  }
  return port;
}

std::string HttpThread::bind(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const std::string digits = colon == std::string::npos ? "" : address.substr(colon + 1);
  const bool is_port = !digits.empty() && digits.size() <= 5 &&
                       digits.find_first_not_of("0123456789") == std::string::npos;
  const int port = is_port ? bind(host, std::stoi(digits)) : 0;
  return port == 0 ? "" : "http://" + host + ":" + std::to_string(port);
}

void HttpThread::start() {
  thread_ = std::thread([this] {
    http_.listen_after_bind();
    ended_ = true;
  });
}

HttpThread::~HttpThread() {
  if (!thread_.joinable()) {
    return;
  }
  // stop() does nothing before the thread listens, and may be called once.
  while (!http_.is_running() && !ended_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  http_.stop();
  thread_.join();
}

}  // namespace ringside::rl
