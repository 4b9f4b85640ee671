// What somebody on the network between can do: copy the bytes of a connection, and send them again.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

namespace ringside::bridge::test {

// A TCP socket on 127.0.0.1 that closes itself.
class TcpSocket {
 public:
  explicit TcpSocket(int fd) : fd_(fd) {
    if (fd_ < 0) {
      throw std::runtime_error("socket");
    }
  }
  ~TcpSocket() { ::close(fd_); }
  TcpSocket(const TcpSocket&) = delete;
  TcpSocket& operator=(const TcpSocket&) = delete;
  int fd() const { return fd_; }

  // Bytes that come within `wait_ms`; "" at the end of the stream or of the time.
  std::string read(int wait_ms) const {
    pollfd item{fd_, POLLIN, 0};
    if (::poll(&item, 1, wait_ms) <= 0) {
      return "";
    }
    char buffer[4096];
    const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
    return got > 0 ? std::string(buffer, static_cast<std::size_t>(got)) : "";
  }
  void write(const std::string& bytes) const {
    (void)!::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

 private:
  int fd_;
};

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

inline int connect_to(const std::string& zmq_address) {
  const int port = std::atoi(zmq_address.substr(zmq_address.rfind(':') + 1).c_str());
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error("connect " + zmq_address);
  }
  return fd;
}

// Passes the first connection on to `target` and keeps what the client sent.
class RecordingProxy {
 public:
  explicit RecordingProxy(const std::string& target)
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_.fd(), raw, size) != 0 || ::listen(listener_.fd(), 1) != 0 ||
        ::getsockname(listener_.fd(), raw, &size) != 0) {
      throw std::runtime_error("proxy");
    }
    address_ = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::jthread([this, target](const std::stop_token& stop) { pass(stop, target); });
  }
  const std::string& address() const { return address_; }
  std::string recorded() {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }

 private:
  void pass(const std::stop_token& stop, const std::string& target) {
    pollfd waiting{listener_.fd(), POLLIN, 0};
    while (::poll(&waiting, 1, 20) <= 0) {
      if (stop.stop_requested()) {
        return;
      }
    }
    const TcpSocket client(::accept(listener_.fd(), nullptr, nullptr));
    const TcpSocket server(connect_to(target));
    while (!stop.stop_requested()) {
      const std::string up = client.read(5);
      {
        const std::lock_guard lock(mutex_);
        recorded_ += up;
      }
      server.write(up);
      client.write(server.read(5));
    }
  }

  TcpSocket listener_;
  std::string address_;
  std::mutex mutex_;
  std::string recorded_;
  std::jthread thread_;
};

// Sends `bytes` to an address and returns what is answered until the other side closes or 5 s pass.
inline std::string play_until_closed(const std::string& zmq_address, const std::string& bytes) {
  const TcpSocket socket(connect_to(zmq_address));
  socket.write(bytes);
  std::string answer;
  for (std::string part = socket.read(5000); !part.empty(); part = socket.read(5000)) {
    answer += part;
  }
  return answer;
}

}  // namespace ringside::bridge::test
