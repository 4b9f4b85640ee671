// Values of tool arguments that a model writes as plain text, in the types of the tool's schema.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ringside::rl {

// The schema of a tool's parameters ("properties") among a request's tools; null when the tool is
// not there or has none.
nlohmann::json tool_properties(const nlohmann::json& tools, std::string_view tool);

// The value as JSON text in the first type of its schema that it can be read as, in the order null,
// integer, number, boolean, object, array, string. A string where it fits none, and without a
// schema.
// Source: coerce_to_schema_type() and extract_types_from_schema() of vLLM 0.24.
std::string value_of_schema(const std::string& value, const nlohmann::json& schema);

// Arguments as a JSON object: values of names with a schema by value_of_schema(), the others as
// strings. A repeated name has its first place and its last value.
// properties: of tool_properties().
std::string typed_arguments(const std::vector<std::pair<std::string, std::string>>& values,
                            const nlohmann::json& properties);

}  // namespace ringside::rl
