#include "rl/config/harness_function.h"

#include <stdexcept>

#include "rl/config/data_files.h"

namespace ringside::rl {
namespace {

constexpr std::string_view kBegin = "python(";

}  // namespace

HarnessFunction parse_harness(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (!text.starts_with(kBegin) || !text.ends_with(")") || colon == std::string::npos ||
      colon <= kBegin.size() || colon + 2 >= text.size()) {
    throw std::invalid_argument("is \"" + text +
                                "\"; expected python(FILE.py:FUNCTION), external, or nothing");
  }
  return {text.substr(kBegin.size(), colon - kBegin.size()),
          text.substr(colon + 1, text.size() - colon - 2)};
}

std::string absolute_harness_file(const std::string& text, const std::filesystem::path& folder) {
  try {
    const HarnessFunction harness = parse_harness(text);
    return std::string(kBegin) + absolute_path(harness.file, folder) + ":" + harness.function + ")";
  } catch (const std::invalid_argument&) {
    return text;  // check_combinations() reports it
  }
}

}  // namespace ringside::rl
