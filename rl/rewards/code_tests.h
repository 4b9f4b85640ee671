// Reward of programs that are run against tests in a sandbox (sandbox.h).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rl/rewards/reward.h"

namespace ringside::rl {

// The program is the completion's last ```python (or ```py, ```python3, or unnamed) block, else the
// whole completion. One that is blank or longer than 1 MiB scores 0. options.code_command runs it.
// The data set's answer is one of
//   - test code: 1 when program and tests run to their end with exit status 0, else 0. If the
//     command's name begins with "python", the tests are run in the program's module after it has
//     ended, and reach the process only then; a program that exits early (sys.exit, os._exit)
//     scores 0. It could still find what runs it by searching its own interpreter. With another
//     command the tests are appended to the program, which can read them in its file;
//   - a JSON array of {"input": text, "output": text}, or the object {"inputs": [...], "outputs":
//     [...]} of APPS and TACO, whose elements are texts or lists of lines: the share of cases with
//     that standard output and exit status 0. White space at the end of lines and of the whole
//     output is ignored. The first case that times out ends the sequence; the cases after it count
//     as failed.
// Any other answer that is JSON is rejected (code_tests_answer_problem), and so is a blank one.
// Each run is limited to code_timeout_s and code_memory_mb and has no network. At most 1 MiB of its
// output counts.
// Throws: std::invalid_argument when the command is not found or cannot be run in a sandbox on this
// machine, or when a limit is not above 0. The reward throws RewardUnavailable when no process can
// be started.
Reward code_tests_reward(const RewardOptions& options);

// See answer_problem() in reward.h: an answer in none of these forms.
std::string code_tests_answer_problem(std::string_view answer, const RewardOptions& options);

// For each answer, why it is no test code that Python can parse ("line 1: invalid syntax"); "" for
// cases, for good test code, and for all answers if the command's name does not begin with "python"
// or gives no answer. One program of the sandbox looks at all of them.
// Throws: as code_tests_reward.
std::vector<std::string> code_tests_syntax(std::span<const std::string_view> answers,
                                           const RewardOptions& options);

}  // namespace ringside::rl
