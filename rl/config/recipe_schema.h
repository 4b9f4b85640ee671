// JSON Schema of a recipe, for editors and other programs.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace ringside::rl {

// The schema (draft 2020-12) of a recipe file: types, enumerations, bounds, defaults, and the
// comments of configs/defaults.yaml as descriptions. It knows single keys. Contradictions between
// keys are found by `ringside check`.
std::string recipe_schema();

// The comment of each key and section of a document like configs/defaults.yaml, by dotted name. A
// comment goes on in the comment lines below it.
std::map<std::string, std::string> comments_of(std::string_view yaml);

}  // namespace ringside::rl
