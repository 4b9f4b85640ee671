// Rewards: functions from a completion to a score, looked up by the names in rollout.reward.
// Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::rl {

// Largest magnitude of a reward, a turn's reward or an advantage. Far above any use; sums of
// squares do not overflow.
inline constexpr double kMaxReward = 1e6;

// Input of a reward. The views must live until the call returns.
struct RewardInput {
  std::string_view prompt;
  // Decoded without special tokens. A model's output: it may hold any bytes.
  std::string_view completion;
  std::string_view answer;            // of the data set
  int64_t completion_tokens = 0;      // sampled tokens
  int64_t max_completion_tokens = 0;  // limit of sampled tokens; 0 = unknown
  bool truncated = false;             // the completion stopped at that limit
  std::string_view columns = {};      // other fields of the data, a JSON object or ""
};

// No score is available, for a reason other than the completion: a reward server that does not
// answer, a process that cannot be started. The sample must be dropped, not scored 0.
class RewardUnavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A reward: returns a finite score for any completion. A completion that it cannot parse is wrong.
// code_tests, http and judge use resources outside the process; the other rewards are pure.
// Blocks: code_tests, http and judge, up to their timeouts, which are of one program or attempt.
// Throws: only RewardUnavailable, from these three, and for an answer that answer_problem()
// rejects.
// Thread safety: safe to call concurrently.
using Reward = std::function<double(const RewardInput&)>;

struct RewardOptions {
  // exact_match, math_answer, multiple_choice: the answer follows its last occurrence; "" = the
  // whole completion is the answer.
  std::string separator;
  std::vector<std::string> stops;  // texts that end a completion and are no part of the answer
  double tolerance = 1e-6;         // math_answer, times the larger of 1 and the numbers' magnitudes
  std::string regex;               // regex: RE2 syntax
  std::string json_schema;         // json_schema: file of the schema; "" = the answer is the schema
  int64_t repetition_ngram = 20;   // repetition: words
  std::string code_command = "python3";    // code_tests: interpreter and its arguments
  double code_timeout_s = 5.0;             // code_tests: seconds per program
  int64_t code_memory_mb = 1024;           // code_tests: MiB of address space per process
  std::string http_url;                    // http: http[s]://host[:port][/path]
  double http_timeout_s = 30.0;            // http: seconds per try
  std::string judge_url;                   // judge: as http_url, before /chat/completions
  std::string judge_model;                 // judge: name that the server knows
  std::string judge_rubric;                // judge: text, or a file .md or .txt; "" = correctness
  std::string judge_api_key_file;          // judge: "" = no key
  int64_t judge_concurrency = 16;          // judge: requests at a time
  double judge_timeout_s = 60.0;           // judge: seconds per try
  std::string python_command = "python3";  // python: interpreter and its arguments
  int64_t python_processes = 1;            // python: processes for each function
  double python_timeout_s = 60.0;          // python: seconds per call
};

// The reward of that name.
// Throws: std::invalid_argument for an unknown name (listing the known names and the nearest) and
// for options that the reward cannot use.
Reward make_reward(std::string_view name, const RewardOptions& options);

// The reason why the reward of that name cannot use this answer of a data set ("is no usable
// schema: ..."); "" when it can. Rewards that ignore the answer accept any.
// Throws: like make_reward on the name.
std::string answer_problem(std::string_view name, std::string_view answer,
                           const RewardOptions& options);

// All names in alphabetical order. The views live as long as the program.
std::vector<std::string_view> reward_names();

// The error message for a name that is not among reward_names().
std::string unknown_reward(std::string_view name);

}  // namespace ringside::rl
