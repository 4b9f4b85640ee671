// SIGINT, SIGTERM and SIGHUP as a wish to stop, for the commands that finish what they are at
// first.
#pragma once

namespace ringside::tools {

// From now on the first signal of each kind only sets stop_signal(); a second of the same kind ends
// the process as usual. A SIGHUP that is ignored stays ignored. Call it once, when there is
// something worth finishing.
void finish_on_stop_signals();

// The signal that came last, or 0.
int stop_signal();

}  // namespace ringside::tools
