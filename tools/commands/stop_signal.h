// Stop requests by SIGINT, SIGTERM and SIGHUP, for commands that first finish their current work.
#pragma once

namespace ringside::tools {

// Installs the handlers. Afterwards the first signal only sets stop_signal(); another one,
// kOneRequest (launch/signal_queue.h) or more later, ends the process as usual. An ignored SIGHUP
// stays ignored. Call it once, when there is work worth finishing.
void finish_on_stop_signals();

// The first signal received, or 0.
int stop_signal();

}  // namespace ringside::tools
