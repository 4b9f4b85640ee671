#include "tools/doctor/network_findings.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <memory>
#include <stdexcept>
#include <system_error>

namespace ringside::tools {
namespace {

constexpr int kHttpPort = 80, kHttpsPort = 443;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

class Socket {
 public:
  explicit Socket(const addrinfo& address)
      : fd_(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  ~Socket() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// The addresses of a host; null with `error` set if there are none.
Addresses resolve(const HostPort& at, bool passive, std::string& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  const bool any = at.host == "*" || at.host == "0.0.0.0";
  addrinfo* list = nullptr;
  const int failed =
      getaddrinfo(any ? nullptr : at.host.c_str(), std::to_string(at.port).c_str(), &hints, &list);
  if (failed != 0) {
    error = "the name " + at.host + " is not resolved: " + gai_strerror(failed);
    return nullptr;
  }
  return Addresses(list);
}

// 0, or the error of the system.
int try_bind(const addrinfo& address) {
  const Socket socket(address);
  const int yes = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  return bind(socket.fd(), address.ai_addr, address.ai_addrlen) == 0 && listen(socket.fd(), 1) == 0
             ? 0
             : errno;
}

int try_connect(const addrinfo& address, std::chrono::milliseconds deadline) {
  const Socket socket(address);
  if (connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0) {
    return 0;
  }
  if (errno != EINPROGRESS) {
    return errno;
  }
  pollfd waiting{socket.fd(), POLLOUT, 0};
  if (poll(&waiting, 1, static_cast<int>(deadline.count())) != 1) {
    return ETIMEDOUT;
  }
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

std::string text_of_error(int error) { return std::generic_category().message(error); }

}  // namespace

HostPort host_and_port(const std::string& address) {
  const bool https = address.starts_with("https://");
  if (!https && !address.starts_with("tcp://") && !address.starts_with("http://")) {
    throw std::invalid_argument("\"" + address +
                                "\" is neither tcp://HOST:PORT nor http://HOST or https://HOST");
  }
  std::string rest = address.substr(address.find("://") + 3);
  rest = rest.substr(0, rest.find('/'));
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string::npos) {
    return {rest, https ? kHttpsPort : kHttpPort};
  }
  HostPort at{rest.substr(0, colon), 0};
  const char* end = rest.data() + rest.size();
  const auto parsed = std::from_chars(rest.data() + colon + 1, end, at.port);
  if (parsed.ptr != end || parsed.ec != std::errc{} || at.port < 0 || at.port > 65535) {
    throw std::invalid_argument("\"" + address + "\" has no port of 0 to 65535");
  }
  return at;
}

std::vector<Finding> local_network_findings() {
  std::vector<Finding> findings;
  std::string error;
  const Addresses loopback = resolve({"127.0.0.1", 0}, true, error);
  const int failed = loopback ? try_bind(*loopback) : EADDRNOTAVAIL;
  findings.push_back(
      failed == 0 ? Finding{Health::kGood, "ports: a free port of 127.0.0.1 can be bound", ""}
                  : Finding{Health::kBad, "ports: 127.0.0.1: " + text_of_error(failed),
                            "ranks and workers of one machine meet there"});
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  const Addresses own = resolve({name, 0}, false, error);
  findings.push_back(own ? Finding{Health::kGood, "name of this machine: " + std::string(name), ""}
                         : Finding{Health::kWarning, "name of this machine: " + error,
                                   "several machines find each other by it; add it to /etc/hosts"});
  return findings;
}

Finding bind_finding(const std::string& key, const std::string& address,
                     std::chrono::milliseconds deadline) {
  const HostPort at = host_and_port(address);
  const std::string what = key + ": " + address;
  if (at.port == 0) {
    return {Health::kGood, what + ", any free port", ""};
  }
  std::string error;
  const Addresses addresses = resolve(at, true, error);
  if (!addresses) {
    return {Health::kBad, what + ": " + error, "expected a name or address of the trainer"};
  }
  const int failed = try_bind(*addresses);
  if (failed == 0) {
    return {Health::kGood, what + ", free on this machine", ""};
  }
  if (failed != EADDRNOTAVAIL) {
    return {Health::kBad, what + ": " + text_of_error(failed),
            "another program or an earlier run has it (`ss -ltnp`); end that, or choose another "
            "port"};
  }
  const int closed = try_connect(*addresses, deadline);
  if (closed == 0) {
    return {Health::kGood, what + ", another machine, which answers", ""};
  }
  return {Health::kWarning, what + ", another machine: " + text_of_error(closed),
          "start the trainer there first; if it runs, a firewall may be between"};
}

Finding server_finding(const std::string& key, const std::string& url,
                       std::chrono::milliseconds deadline) {
  const std::string what = key + ": " + url;
  std::string error;
  const Addresses addresses = resolve(host_and_port(url), false, error);
  if (!addresses) {
    return {Health::kBad, what + ": " + error, "check the host's name"};
  }
  const int failed = try_connect(*addresses, deadline);
  if (failed == 0) {
    return {Health::kGood, what + ", answers", ""};
  }
  return {Health::kBad, what + ": " + text_of_error(failed),
          "start the server, or correct the address; if it runs, a firewall may be between"};
}

}  // namespace ringside::tools
