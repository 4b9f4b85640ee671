// Stop requests by SIGINT, SIGTERM and SIGHUP, for commands that first finish their current work.
#pragma once

namespace ringside::tools {

// Installs the handlers. Afterwards the first signal of each kind only sets stop_signal(); a second
// of the same kind ends the process as usual. An ignored SIGHUP stays ignored. Call it once, when
// there is work worth finishing.
void finish_on_stop_signals();

// The last signal received, or 0.
int stop_signal();

}  // namespace ringside::tools
