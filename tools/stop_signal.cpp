#include "tools/stop_signal.h"

#include <signal.h>

#include <csignal>

namespace ringside::tools {
namespace {

// A signal handler can only access variables of static storage.
volatile std::sig_atomic_t received = 0;

void receive(int signal) { received = signal; }

}  // namespace

void finish_on_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = receive;
  action.sa_flags = SA_RESETHAND | SA_RESTART;  // the second one kills
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
