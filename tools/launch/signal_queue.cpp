#include "tools/launch/signal_queue.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>

namespace ringside::tools {
namespace {

using Clock = std::chrono::steady_clock;

// Timeout of poll() in milliseconds, rounded up so that the deadline has passed when poll() times
// out; -1 for none.
int poll_timeout(std::optional<Clock::time_point> deadline) {
  if (!deadline) {
    return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, std::numeric_limits<int>::max()));
}

}  // namespace

SignalQueue::SignalQueue() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM}) {
    sigaddset(&set, signal);
  }
  // Respects nohup: a signalfd would receive the signal although it is ignored.
  for (const int signal : {SIGHUP, SIGPIPE}) {
    struct sigaction action;
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) {
      sigaddset(&set, signal);
    }
  }
  fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd_ < 0) {
    throw std::system_error(errno, std::generic_category(), "signalfd");
  }
  pthread_sigmask(SIG_BLOCK, &set, &previous_);
}

SignalQueue::~SignalQueue() {
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
  close(fd_);
}

std::optional<int> SignalQueue::wait(std::optional<Clock::time_point> deadline,
                                     const std::vector<int>& readable) {
  std::vector<pollfd> events{{.fd = fd_, .events = POLLIN, .revents = 0}};
  for (const int fd : readable) {
    events.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  }
  while (true) {
    signalfd_siginfo info;
    const ssize_t got = read(fd_, &info, sizeof(info));
    if (got == sizeof(info)) {
      return static_cast<int>(info.ssi_signo);
    }
    if (got < 0 && errno != EAGAIN && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "reading a signalfd");
    }
    const int ready = poll(events.data(), events.size(), poll_timeout(deadline));
    if (ready == 0 || (ready > 0 && events[0].revents == 0)) {
      return std::nullopt;
    }
    if (ready < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "poll");
    }
  }
}

}  // namespace ringside::tools
