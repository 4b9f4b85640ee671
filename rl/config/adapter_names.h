// Names of the adapters of a run. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// The names in lora.adapters, in order; empty: the run has one adapter without a name, or none.
// They name folders, metrics and the models of an inference server. Throws: std::invalid_argument
// naming the one that is empty, has other characters than letters, digits, ".", "-" and "_", does
// not begin with a letter or digit, or is there twice.
std::vector<std::string> adapter_names(const LoraConfig& lora);

// Where the adapter `name` starts from: lora.path, or of several its folder in it; "" where they
// are new.
std::string adapter_start(const LoraConfig& lora, const std::string& name);

// What the names of an adapter's parameters begin with among those of several.
inline std::string adapter_prefix(const std::string& name) { return name + "/"; }

}  // namespace ringside::rl
