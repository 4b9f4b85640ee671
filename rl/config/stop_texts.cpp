#include "rl/config/stop_texts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace ringside::rl {

std::vector<std::string> stop_texts(const std::string& stop) {
  if (stop.empty()) {
    return {};
  }
  const auto list = nlohmann::json::parse(stop, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) {
    return {stop};
  }
  const bool texts = std::all_of(list.begin(), list.end(), [](const nlohmann::json& text) {
    return text.is_string() && !text.get_ref<const std::string&>().empty();
  });
  if (list.empty() || !texts) {
    throw std::invalid_argument("is " + stop +
                                "; expected one text, or a list of texts that are not empty");
  }
  return list.get<std::vector<std::string>>();
}

}  // namespace ringside::rl
