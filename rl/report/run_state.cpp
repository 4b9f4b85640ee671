#include "rl/report/run_state.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "rl/report/progress.h"

namespace ringside::rl {
namespace {

// The complete lines of a file that are JSON objects.
std::vector<nlohmann::json> objects_of(const std::filesystem::path& path) {
  std::vector<nlohmann::json> objects;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    if (auto object = nlohmann::json::parse(line, nullptr, false); object.is_object()) {
      objects.push_back(std::move(object));
    }
  }
  return objects;
}

std::string text_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t number_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

RunStatus status_of(const std::string& how) {
  return how == "finished"  ? RunStatus::kFinished
         : how == "stopped" ? RunStatus::kStopped
         : how == "failed"  ? RunStatus::kFailed
                            : RunStatus::kLost;
}

// "2026-01-31T12:00:00Z" -> "2026-01-31 12:00 UTC"; without the day if that is `day`.
std::string minute_text(const std::string& time, const std::string& day = "") {
  if (time.size() < 16) {
    return time;
  }
  const std::string own_day = time.substr(0, 10);
  return (own_day == day ? "" : own_day + " ") + time.substr(11, 5) + " UTC";
}

}  // namespace

RunState read_run_state(const std::filesystem::path& run_dir, const std::vector<MetricsLine>& lines,
                        bool trainer_at_work) {
  RunState state;
  for (const MetricsLine& line : lines) {
    state.steps = std::max(state.steps, line.step);
    state.training_seconds += find_metric(line.metrics, "step_time").value_or(0.0);
  }
  const auto starts = objects_of(run_dir / "starts.jsonl");
  state.starts = static_cast<int64_t>(starts.size());
  if (!starts.empty()) {
    state.first_start = text_of(starts.front(), "time");
    state.newest_start = text_of(starts.back(), "time");
    state.planned = number_of(starts.back(), "steps");
    state.status = RunStatus::kLost;
  }
  for (const nlohmann::json& end : objects_of(run_dir / "ends.jsonl")) {
    if (number_of(end, "start") == state.starts) {
      state.status = status_of(text_of(end, "how"));
      state.reason = text_of(end, "reason");
      state.end = text_of(end, "time");
    }
  }
  if (trainer_at_work && state.end.empty()) {
    state.status = RunStatus::kTraining;
  }
  return state;
}

std::string describe_status(const RunState& state) {
  const std::string steps = std::to_string(state.steps) +
                            (state.planned > 0 ? " of " + std::to_string(state.planned) : "") +
                            " steps";
  switch (state.status) {
    case RunStatus::kUnknown:
      return steps + " done";
    case RunStatus::kTraining:
      return "training: " + steps + " done";
    case RunStatus::kFinished:
      return "finished: " + steps + " done";
    case RunStatus::kStopped:
      return "stopped by " + state.reason + " after " + steps;
    case RunStatus::kFailed:
      return "failed after " + steps + ": " + state.reason;
    case RunStatus::kLost:
      return "cut off after " + steps + ": the trainer was killed, or the machine went down";
  }
  return steps;
}

std::string describe_times(const RunState& state) {
  if (state.newest_start.empty()) {
    return "";
  }
  std::string text = "started " + minute_text(state.first_start);
  if (state.starts > 1) {
    text += ", for the last of " + std::to_string(state.starts) + " times " +
            minute_text(state.newest_start, state.first_start.substr(0, 10));
  }
  if (!state.end.empty()) {
    text += ", ended " + minute_text(state.end, state.newest_start.substr(0, 10));
  }
  return text + "; " + format_duration(state.training_seconds) + " of training";
}

}  // namespace ringside::rl
