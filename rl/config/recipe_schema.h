// JSON Schema of a recipe, for editors and other programs.
#pragma once

#include <string>

namespace ringside::rl {

// The schema (draft 2020-12) of a recipe file: types, enumerations, bounds, defaults, and the
// sentences of the keys as descriptions. It knows single keys. Contradictions between
// keys are found by `ringside check`.
std::string recipe_schema();

}  // namespace ringside::rl
