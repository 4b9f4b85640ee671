// Recipe that `ringside init --from` writes from another system's configuration.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/init/foreign_config.h"
#include "tools/init/translator.h"

namespace ringside::tools {

struct TranslatedRecipe {
  std::string system;  // "verl", "TRL", "axolotl" or "OpenRLHF"
  std::string yaml;    // the recipe, with a comment at each key and what was left at its end
  std::vector<std::string> left;    // lines for the terminal: what is not in the recipe, and why
  std::vector<std::string> to_dos;  // what the user has to do by hand
  int64_t taken = 0;                // keys of the recipe
};

// processes: those that train, for batch sizes a device; 0 = as the file says, else one.
// The recipe passes load_config(). Files that it names need not exist.
// Throws: std::invalid_argument with all mistakes, one a line, each with file, line and key: a
// value that is no number where one is expected, keys that exclude each other, a setting that
// changes the algorithm and is not here, and a file of no known system.
TranslatedRecipe translate_recipe(const ForeignConfig& config, int64_t processes);

}  // namespace ringside::tools
