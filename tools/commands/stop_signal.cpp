#include "tools/commands/stop_signal.h"

#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>

#include "tools/launch/signal_queue.h"

namespace ringside::tools {
namespace {

// A signal handler can only access variables of static storage, without locks.
volatile std::sig_atomic_t received = 0;
std::atomic<int64_t> received_at_ms = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000} * now.tv_sec + now.tv_nsec / 1'000'000;
}

// Whether this process's output goes to a pipe that nobody reads from any more. SIGPIPE may also
// come from a connection that was lost.
bool reader_is_gone() {
  pollfd outputs[] = {{.fd = STDOUT_FILENO, .events = 0, .revents = 0},
                      {.fd = STDERR_FILENO, .events = 0, .revents = 0}};
  return poll(outputs, 2, 0) > 0 && ((outputs[0].revents | outputs[1].revents) & POLLERR) != 0;
}

// Each further line that nobody reads brings one more SIGPIPE, which is no second request.
void receive_pipe(int signal) {
  const int error = errno;  // of the write() that was interrupted
  if (received == 0 && reader_is_gone()) {
    received = signal;
    received_at_ms = now_ms();
  }
  errno = error;
}

void receive(int signal) {
  if (received == 0) {
    received = signal;
    received_at_ms = now_ms();
  } else if (now_ms() - received_at_ms >= kOneRequest.count()) {
    ::signal(signal, SIG_DFL);
    raise(signal);  // delivered when this handler returns
  }
}

}  // namespace

void finish_on_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = receive;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  struct sigaction pipe = {};
  sigaction(SIGPIPE, nullptr, &pipe);
  if (pipe.sa_handler != SIG_IGN) {
    action.sa_handler = receive_pipe;
    sigaction(SIGPIPE, &action, nullptr);
    action.sa_handler = receive;
  }
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) {  // as nohup leaves it
    sigaction(SIGHUP, &action, nullptr);
  }
}

int stop_signal() { return received; }

}  // namespace ringside::tools
