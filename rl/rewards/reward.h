// Rewards: functions from a completion to a score, found by the names that rollout.reward gives.
// Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::rl {

// What a reward may look at. The views need to live only for the length of the call.
struct RewardInput {
  std::string_view prompt;
  std::string_view
      completion;  // decoded without special tokens; any bytes whatever, it is a model's output
  std::string_view answer;            // of the data set
  int64_t completion_tokens = 0;      // that were sampled
  int64_t max_completion_tokens = 0;  // that could have been; 0 = not known
  bool truncated = false;             // the completion stopped because that limit came
};

// There is no score, through no fault of the completion: a reward server that does not answer, a
// process that cannot be started. The sample is to be dropped, not scored 0.
class RewardUnavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A finite score, from any thread, whatever the completion holds: what a reward cannot read is
// wrong. Throws RewardUnavailable alone: for an answer that answer_problem() refuses, and from the
// rewards that ask something outside the process (code_tests, http); these also block for up to
// their timeouts. The others are pure.
using Reward = std::function<double(const RewardInput&)>;

struct RewardOptions {
  // exact_match, math_answer, multiple_choice: the answer is what follows its last occurrence; "" =
  // the whole completion.
  std::string separator;
  std::string stop;         // text that ends a completion and is no part of the answer; "" = none
  double tolerance = 1e-6;  // math_answer, times the larger of 1 and the numbers' magnitudes
  std::string regex;        // regex: RE2 syntax
  std::string json_schema;  // json_schema: file of the schema; "" = the answer is the schema
  int64_t repetition_ngram = 20;         // repetition: words
  std::string code_command = "python3";  // code_tests: interpreter and its arguments
  double code_timeout_s = 5.0;           // code_tests: seconds per program
  int64_t code_memory_mb = 1024;         // code_tests: MiB of address space per process
  std::string http_url;                  // http: http://host[:port][/path]
  double http_timeout_s = 30.0;          // http: seconds per try
};

// The reward of that name. Throws std::invalid_argument on a name that is unknown (listing those
// there are and the nearest) and on options that the reward cannot work with.
Reward make_reward(std::string_view name, const RewardOptions& options);

// Why the reward of that name cannot compare with this answer of a data set, "" when it can: "is no
// usable schema: ...". Rewards that look at no answer take any. Throws like make_reward on the
// name.
std::string answer_problem(std::string_view name, std::string_view answer,
                           const RewardOptions& options);

// In alphabetical order; the views live as long as the program.
std::vector<std::string_view> reward_names();

// The sentence for a name that is not among reward_names().
std::string unknown_reward(std::string_view name);

}  // namespace ringside::rl
