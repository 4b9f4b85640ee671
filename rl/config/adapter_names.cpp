#include "rl/config/adapter_names.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <stdexcept>
#include <string_view>

namespace ringside::rl {
namespace {

bool is_letter_or_digit(unsigned char c) { return std::isalnum(c) != 0; }

bool is_name(std::string_view name) {
  return !name.empty() && is_letter_or_digit(static_cast<unsigned char>(name.front())) &&
         std::ranges::all_of(name, [](char c) {
           return is_letter_or_digit(static_cast<unsigned char>(c)) || c == '.' || c == '-' ||
                  c == '_';
         });
}

std::string_view without_spaces(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

}  // namespace

std::vector<std::string> adapter_names(const LoraConfig& lora) {
  std::vector<std::string> names;
  std::string_view rest = lora.adapters;
  while (!lora.adapters.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string name(without_spaces(rest.substr(0, comma)));
    if (!is_name(name)) {
      throw std::invalid_argument("has the name \"" + name +
                                  "\"; expected letters, digits, \".\", \"-\" and \"_\" behind a "
                                  "letter or digit, and a comma between two names");
    }
    if (std::ranges::find(names, name) != names.end()) {
      throw std::invalid_argument("names " + name + " twice; expected each adapter once");
    }
    names.push_back(name);
    if (comma == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(comma + 1);
  }
  return names;
}

std::string adapter_start(const LoraConfig& lora, const std::string& name) {
  return lora.path.empty() || name.empty() ? lora.path
                                           : (std::filesystem::path(lora.path) / name).string();
}

}  // namespace ringside::rl
