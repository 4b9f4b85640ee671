// Whether a completion's program passes its tests, in a sandbox (sandbox.h).
#pragma once

#include "rl/rewards/reward.h"

namespace ringside::rl {

// The program is the completion's last ```python (or ```py, or unnamed) block, else the whole
// completion, and is run by options.code_command. The data set's answer is one of
//   - test code, appended to the program: 1 when it all runs to its end with exit status 0, else 0.
//   Under a command whose name
//     begins with "python" the end must be seen: a program that leaves early (sys.exit, os._exit)
//     earns nothing;
//   - a JSON array of {"input": text, "output": text}, or the object {"inputs": [...], "outputs":
//   [...]} of APPS and TACO,
//     whose elements are texts or lists of lines: the share of cases whose standard output is that
//     (white space at the end of lines and of the whole aside) with exit status 0. The first case
//     that runs out of time ends the row, those after it count as failed.
// Any other answer that is JSON is refused (code_tests_answer_problem), as is a blank one.
// Each run may take code_timeout_s and code_memory_mb, nothing from the network, and at most 1 MiB
// of output counts. Throws std::invalid_argument when the command is not found or cannot be run in
// a sandbox on this machine, or a limit is not above 0; the reward throws RewardUnavailable when no
// process can be started.
Reward code_tests_reward(const RewardOptions& options);

// See answer_problem() in reward.h: an answer in none of these forms.
std::string code_tests_answer_problem(std::string_view answer, const RewardOptions& options);

}  // namespace ringside::rl
