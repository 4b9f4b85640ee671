#include "rl/rewards/python_reward.h"

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <utility>

#include "rl/python/scripts.h"

namespace ringside::rl {
namespace {

using Value = nlohmann::ordered_json;

// Of a call's time, what calls for single completions may take after an exception.
constexpr double kShareAlone = 0.5;

// The values of one keyword argument.
template <class Member>
Value column_of(std::span<const RewardInput> inputs, const Member& member) {
  Value list = Value::array();
  for (const RewardInput& input : inputs) {
    list.push_back(member(input));
  }
  return list;
}

Value request_of(std::span<const RewardInput> inputs) {
  Value request;
  request["arguments"] = {
      {"prompts", column_of(inputs, [](const RewardInput& i) { return i.prompt; })},
      {"completions", column_of(inputs, [](const RewardInput& i) { return i.completion; })},
      {"answers", column_of(inputs, [](const RewardInput& i) { return i.answer; })},
      {"completion_tokens",
       column_of(inputs, [](const RewardInput& i) { return i.completion_tokens; })},
      {"truncated", column_of(inputs, [](const RewardInput& i) { return i.truncated; })}};
  request["columns"] = column_of(inputs, [](const RewardInput& i) {
    const Value columns = Value::parse(i.columns, nullptr, /*allow_exceptions=*/false);
    return columns.is_object() ? columns : Value::object();
  });
  return request;
}

// Whether the helper's script can have returned this: a number, or why there is none, for each
// completion. The user's function runs in the same process and may write to its channel.
bool are_scores(const nlohmann::json& results, std::size_t count) {
  return results.is_array() && results.size() == count &&
         std::all_of(results.begin(), results.end(), [](const nlohmann::json& result) {
           return result.is_number() || result.is_string();
         });
}

}  // namespace

// A process for one call; waits until one is free. Each call has a deadline.
class PythonReward::Lease {
 public:
  explicit Lease(PythonReward& reward) : reward_(reward) {
    std::unique_lock lock(reward_.mutex_);
    reward_.freed_.wait(lock, [&] { return !reward_.free_.empty(); });
    process_ = reward_.free_.back();
    reward_.free_.pop_back();
  }
  ~Lease() {
    {
      const std::lock_guard lock(reward_.mutex_);
      reward_.free_.push_back(process_);
    }
    reward_.freed_.notify_one();
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  PythonProcess& operator*() const { return *process_; }
  PythonProcess* operator->() const { return process_; }

 private:
  PythonReward& reward_;
  PythonProcess* process_ = nullptr;
};

PythonReward::PythonReward(const WeightedReward& reward, const RewardOptions& options)
    : name_("python(" + reward.file + ":" + reward.name + ")") {
  PythonProgram program;
  program.command = options.python_command;
  program.script = reward_function_script();
  program.setup = {{"file", reward.file},
                   {"function", reward.name},
                   {"bound", kMaxReward},
                   {"seconds_alone", options.python_timeout_s * kShareAlone}};
  program.timeout_s = options.python_timeout_s;
  for (int64_t i = 0; i < std::max<int64_t>(1, options.python_processes); ++i) {
    processes_.push_back(std::make_unique<PythonProcess>(program));
    free_.push_back(processes_.back().get());
  }
}

void PythonReward::load() {
  const Lease process(*this);
  try {
    process->start();
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(name_ + ": " + error.what());
  }
}

std::vector<PythonReward::Score> PythonReward::score_part(std::span<const RewardInput> inputs) {
  const Lease process(*this);
  try {
    const nlohmann::json results = process->ask(request_of(inputs));
    if (!are_scores(results, inputs.size())) {
      process->stop();  // the helper's own answer may still follow
      throw PythonUnavailable("the Python process answered " + results.dump().substr(0, 80) +
                              ", expected a list of " + std::to_string(inputs.size()) + " numbers");
    }
    std::vector<Score> scores;
    for (const nlohmann::json& result : results) {
      if (result.is_number()) {
        scores.push_back({result.get<double>(), ""});
      } else if (result.get<std::string>().empty()) {
        scores.push_back({0.0, name_ + ": returned None: no score", /*is_declined=*/true});
      } else {
        scores.push_back({0.0, name_ + ": " + result.get<std::string>()});
      }
    }
    return scores;
  } catch (const std::runtime_error& error) {
    return std::vector<Score>(inputs.size(), Score{0.0, name_ + ": " + error.what()});
  }
}

std::vector<PythonReward::Score> PythonReward::score(std::span<const RewardInput> inputs) {
  const std::size_t parts = std::min(processes_.size(), inputs.size());
  std::vector<std::vector<Score>> results(parts);
  {
    std::vector<std::jthread> threads;
    for (std::size_t p = 0; p < parts; ++p) {
      const std::size_t begin = inputs.size() * p / parts;
      const std::size_t end = inputs.size() * (p + 1) / parts;
      const auto work = [this, &results, p, part = inputs.subspan(begin, end - begin)] {
        results[p] = score_part(part);
      };
      if (p + 1 == parts) {
        work();
      } else {
        threads.emplace_back(work);
      }
    }
  }
  std::vector<Score> scores;
  for (std::vector<Score>& part : results) {
    std::move(part.begin(), part.end(), std::back_inserter(scores));
  }
  return scores;
}

}  // namespace ringside::rl
