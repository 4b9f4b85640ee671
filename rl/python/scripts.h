// Source texts of the Python helpers. Torch-free.
#pragma once

#include <string>

namespace ringside::rl {

// Serves requests on descriptor 3 with the functions setup(value) and answer(value) of the script
// that it is appended to.
std::string serve_script();

// Renders chat templates with Jinja2.
std::string chat_template_script();

// Calls a function of a user's file.
std::string reward_function_script();

// Calls a function of a user's file for each session of a gateway.
std::string harness_script();

}  // namespace ringside::rl
