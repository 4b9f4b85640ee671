// SIGINT and SIGTERM as a wish to stop, for the commands that finish what they are at first.
#pragma once

namespace ringside::tools {

// From now on the first SIGINT and the first SIGTERM only set stop_signal(); a second of the same
// kind ends the process as usual. Call it once, when there is something worth finishing.
void finish_on_stop_signals();

// The signal that came last, or 0.
int stop_signal();

}  // namespace ringside::tools
