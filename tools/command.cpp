#include "tools/command.h"

#include <c10/util/Exception.h>

#include <iostream>

namespace ringside::tools {

std::string error_text(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

ConfigInputs split_inputs(const std::vector<std::string>& words) {
  ConfigInputs inputs;
  for (const std::string& word : words) {
    const bool assignment = word.find('=') != std::string::npos;
    if (assignment && !std::filesystem::exists(word)) {
      inputs.overrides.push_back(word);
    } else {
      inputs.recipes.emplace_back(word);
    }
  }
  return inputs;
}

std::optional<rl::LoadedConfig> load_or_print_errors(const ConfigInputs& inputs) {
  rl::LoadedConfig loaded = rl::load_config(inputs.recipes, inputs.overrides);
  if (loaded.ok()) return loaded;
  for (const std::string& error : loaded.errors) std::cerr << error << "\n";
  std::cerr << loaded.errors.size() << (loaded.errors.size() == 1 ? " mistake" : " mistakes")
            << "; nothing was started\n";
  return std::nullopt;
}

}  // namespace ringside::tools
