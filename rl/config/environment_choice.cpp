#include "rl/config/environment_choice.h"

#include <algorithm>
#include <stdexcept>

#include "rl/config/data_files.h"
#include "rl/python/scripts.h"

namespace ringside::rl {
namespace {

constexpr const char* kPython = "python";

std::string expected_forms() {
  std::string text = "python(FILE.py:CLASS)";
  for (const auto name : connector_names()) {
    text += ", " + std::string(name) + "(...)";
  }
  return text + ", or nothing";
}

}  // namespace

EnvironmentChoice parse_environment(const std::string& text) {
  const std::size_t open = text.find('(');
  if (open == std::string::npos || !text.ends_with(")") || text.size() < open + 3) {
    throw std::invalid_argument("is \"" + text + "\"; expected " + expected_forms());
  }
  EnvironmentChoice choice{text.substr(0, open), {}, text.substr(open + 1)};
  choice.argument.pop_back();
  if (choice.connector != kPython) {
    const auto names = connector_names();
    if (std::find(names.begin(), names.end(), choice.connector) == names.end()) {
      throw std::invalid_argument("is \"" + text + "\"; expected " + expected_forms());
    }
    return choice;
  }
  const std::size_t colon = choice.argument.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == choice.argument.size()) {
    throw std::invalid_argument("is \"" + text + "\"; expected " + expected_forms());
  }
  choice.file = choice.argument.substr(0, colon);
  choice.argument.erase(0, colon + 1);
  return choice;
}

std::string absolute_environment_file(const std::string& text,
                                      const std::filesystem::path& folder) {
  try {
    const EnvironmentChoice choice = parse_environment(text);
    return choice.file.empty() ? text
                               : std::string(kPython) + "(" + absolute_path(choice.file, folder) +
                                     ":" + choice.argument + ")";
  } catch (const std::invalid_argument&) {
    return text;  // check_combinations() reports it
  }
}

bool has_sessions(const RolloutConfig& rollout) {
  return !rollout.harness.empty() || !rollout.environment.empty();
}

std::string sessions_key(const RolloutConfig& rollout) {
  return rollout.environment.empty() ? "rollout.harness" : "rollout.environment";
}

}  // namespace ringside::rl
