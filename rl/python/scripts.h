// Source texts of the Python helpers. Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringside::rl {

// Serves requests on descriptor 3 with the functions setup(value) and answer(value) of the script
// that it is appended to.
std::string serve_script();

// Renders chat templates with Jinja2.
std::string chat_template_script();

// Calls a function of a user's file.
std::string reward_function_script();

// Plays each session of a gateway: calls a function of a user's file, or plays an environment.
std::string harness_script();

// The environments of packages by name, in alphabetical order. The views live as long as the
// program.
std::vector<std::string_view> connector_names();

// The source of one of connector_names(), which defines the class Environment.
// Throws: std::out_of_range for another name.
std::string connector_source(const std::string& name);

}  // namespace ringside::rl
