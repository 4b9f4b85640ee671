// The environment of rollout.environment. Torch-free.
#pragma once

#include <filesystem>
#include <string>

#include "rl/config/config.h"

namespace ringside::rl {

struct EnvironmentChoice {
  std::string connector;  // a name of connector_names(), or "python" for a class of the user's
  std::string file;       // the user's file; empty with a connector
  std::string argument;   // the class, or what the connector plays: a task, a game, an address
};

// Reads python(FILE:CLASS) and CONNECTOR(ARGUMENT).
// Throws: std::invalid_argument for a text of another form and an unknown connector.
EnvironmentChoice parse_environment(const std::string& text);

// The text with an absolute path of the user's file; one of another form as it is.
std::string absolute_environment_file(const std::string& text, const std::filesystem::path& folder);

// Whether samples are sessions of the worker's gateway: of a harness or of an environment.
bool has_sessions(const RolloutConfig& rollout);

// The key that has_sessions() is true for: rollout.harness or rollout.environment.
std::string sessions_key(const RolloutConfig& rollout);

}  // namespace ringside::rl
