// Helpers shared by the checks of schemas and of documents. Private to json_schema*.cpp.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ringside::rl {

// The part of `root` that "#" or "#/a/b" names; nullptr for anything else.
const nlohmann::json* resolve_reference(const nlohmann::json& root, const std::string& reference);

}  // namespace ringside::rl
