#include "rl/preflight/machine_limits.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>

#include "rl/config/task.h"
#include "rl/setup/model_device.h"

namespace ringside::rl {
namespace {

// HOST:PORT as an address to bind; nullopt for other forms, port 0 and names.
std::optional<sockaddr_in> bound_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string host(text.substr(0, colon));
  const std::string_view port = text.substr(colon + 1);
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(number);
  const bool any = host == "*";
  if (error != std::errc{} || end != port.data() + port.size() || number == 0 ||
      (!any && inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1)) {
    return std::nullopt;
  }
  return address;
}

// text: HOST:PORT, or tcp://HOST:PORT.
void check_port(const std::string& key, const std::string& text, PreflightReport& report) {
  constexpr std::string_view kTcp = "tcp://";
  const auto address =
      bound_address(std::string_view(text).substr(text.starts_with(kTcp) ? kTcp.size() : 0));
  const int fd = address ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
  if (fd < 0) {
    return;
  }
  const int yes = 1;  // as the run's own sockets: a port of a connection that ended is free
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in bound = *address;
  const bool taken = bind(fd, reinterpret_cast<sockaddr*>(&bound), sizeof bound) != 0;
  const int error = errno;
  close(fd);
  if (taken) {
    report.mistakes.push_back({key, "is " + std::string(text) +
                                        ", which cannot be bound: " + std::strerror(error) +
                                        "; expected a free port, or 0 for one that the system "
                                        "picks"});
  }
}

void note_threads_of(const char* key, int64_t threads, PreflightReport& report) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  if (cores > 0 && threads > cores) {
    report.notes.push_back("WARNING: " + std::string(key) + " is " + std::to_string(threads) +
                           ", but this machine has " + std::to_string(cores) +
                           (cores == 1 ? " core" : " cores") +
                           "; threads will wait for each other");
  }
}

// Ranks of a CPU share its cores.
void note_ranks(const Config& config, const PreflightScope& scope, PreflightReport& report) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  const int64_t ranks = scope.ranks_here > 0 ? scope.ranks_here : config.parallel.world_size();
  if (cores > 0 && ranks > cores && !scope.elsewhere && device_problem(config, 0).empty() &&
      model_device(config, /*local_rank=*/0).is_cpu()) {
    report.notes.push_back("WARNING: " + std::to_string(ranks) + " ranks (parallel.*) share the " +
                           std::to_string(cores) + " cores of this machine's CPU");
  }
}

}  // namespace

void check_ports(const Config& config, const PreflightScope& scope, PreflightReport& report) {
  if (samples_completions(config) && !scope.brings_rollouts) {
    check_port("bridge.rollout_address", config.bridge.rollout_address, report);
    check_port("bridge.weights_address", config.bridge.weights_address, report);
  }
  check_port("log.openmetrics", config.log.openmetrics, report);
}

void note_threads(const Config& config, const PreflightScope& scope, PreflightReport& report) {
  note_threads_of("train.threads", config.train.threads, report);
  note_ranks(config, scope, report);
  if (samples_completions(config) && scope.workers_here) {
    note_threads_of("rollout.worker_threads", config.rollout.worker_threads, report);
  }
}

}  // namespace ringside::rl
