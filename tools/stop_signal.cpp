#include "tools/stop_signal.h"

#include <signal.h>
#include <time.h>

#include <atomic>
#include <csignal>
#include <cstdint>

#include "tools/launch/signal_queue.h"

namespace ringside::tools {
namespace {

// A signal handler can only access variables of static storage, without locks.
volatile std::sig_atomic_t received = 0;
std::atomic<std::int64_t> received_at_ms = 0;
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{1000} * now.tv_sec + now.tv_nsec / 1'000'000;
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
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) {  // as nohup leaves it
    sigaction(SIGHUP, &action, nullptr);
  }
}

int stop_signal() { return received; }

}  // namespace ringside::tools
