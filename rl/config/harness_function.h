// The function of rollout.harness "python(FILE:FUNCTION)". Torch-free.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace ringside::rl {

// rollout.harness of a harness that the worker does not start.
inline constexpr std::string_view kExternalHarness = "external";

struct HarnessFunction {
  std::string file, function;
};

// Throws: std::invalid_argument for a text of another form.
HarnessFunction parse_harness(const std::string& text);

// The text with an absolute path; one of another form as it is.
std::string absolute_harness_file(const std::string& text, const std::filesystem::path& folder);

}  // namespace ringside::rl
