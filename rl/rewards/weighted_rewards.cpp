#include "rl/rewards/weighted_rewards.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <stdexcept>

#include "rl/rewards/answer_text.h"
#include "rl/rewards/reward.h"

namespace ringside::rl {
namespace {

double parse_weight(std::string_view text, std::string_view part) {
  double weight = 0.0;
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), weight);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(weight)) {
    throw std::invalid_argument("the weight '" + std::string(text) + "' in '" + std::string(part) +
                                "' is no finite number; expected \"name * weight\"");
  }
  return weight;
}

constexpr std::string_view kPython = "python";

bool is_python_part(std::string_view part) {
  return part.starts_with(kPython) && !strip(part.substr(kPython.size())).empty() &&
         strip(part.substr(kPython.size())).front() == '(';
}

bool is_identifier(std::string_view text) {
  const auto letter = [](char c) {
    return std::isalpha(static_cast<unsigned char>(c)) || c == '_';
  };
  return !text.empty() && letter(text.front()) &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return letter(c) || std::isdigit(static_cast<unsigned char>(c));
         });
}

// "python(FILE:FUNCTION)" or "python(FILE:FUNCTION) * weight".
WeightedReward parse_python(std::string_view part) {
  const std::size_t open = part.find('(');
  const std::size_t close = part.rfind(')');
  const std::string_view inside =
      close == std::string_view::npos ? "" : strip(part.substr(open + 1, close - open - 1));
  const std::size_t colon = inside.rfind(':');
  const std::string_view file =
      colon == std::string_view::npos ? "" : strip(inside.substr(0, colon));
  const std::string_view function =
      colon == std::string_view::npos ? "" : strip(inside.substr(colon + 1));
  const std::string_view rest =
      close == std::string_view::npos ? "" : strip(part.substr(close + 1));
  if (file.empty() || !is_identifier(function) || (!rest.empty() && rest.front() != '*')) {
    throw std::invalid_argument("'" + std::string(part.substr(0, 200)) +
                                "' is not of the form python(FILE.py:FUNCTION), with \" * weight\" "
                                "after it if need be");
  }
  const double weight = rest.empty() ? 1.0 : parse_weight(strip(rest.substr(1)), part);
  return {std::string(function), weight, std::string(file)};
}

WeightedReward parse_part(std::string_view part) {
  if (part.empty()) {
    throw std::invalid_argument(
        "a reward is missing; expected \"name\" or \"name * weight\", separated by commas");
  }
  if (is_python_part(part)) {
    return parse_python(part);
  }
  const std::size_t star = part.find('*');
  const std::string_view name = strip(part.substr(0, star));
  const auto names = reward_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    throw std::invalid_argument(unknown_reward(name));
  }
  const double weight =
      star == std::string_view::npos ? 1.0 : parse_weight(strip(part.substr(star + 1)), part);
  return {std::string(name), weight};
}

const double* find_reward(const NamedRewards& rewards, const std::string& name) {
  const auto found = std::find_if(rewards.begin(), rewards.end(),
                                  [&](const auto& reward) { return reward.first == name; });
  return found == rewards.end() ? nullptr : &found->second;
}

}  // namespace

std::vector<std::string_view> reward_parts(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      parts.push_back(strip(text.substr(begin, i - begin)));
      begin = i + 1;
    } else {
      depth = std::max(0, depth + (text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0));
    }
  }
  return parts;
}

std::vector<WeightedReward> parse_rewards(std::string_view text) {
  std::vector<WeightedReward> rewards;
  if (strip(text) == "worker") {
    return rewards;
  }
  for (const std::string_view part : reward_parts(text)) {
    WeightedReward reward = parse_part(part);
    for (const WeightedReward& other : rewards) {
      if (other.name == reward.name) {
        throw std::invalid_argument("reward '" + reward.name + "' is named twice");
      }
    }
    rewards.push_back(std::move(reward));
  }
  return rewards;
}

std::string with_reward_files(const std::string& text,
                              const std::function<std::string(const std::string&)>& change) {
  if (text.find(kPython) == std::string::npos) {
    return text;
  }
  std::string result;
  for (const std::string_view part : reward_parts(text)) {
    result += result.empty() ? "" : ", ";
    if (!is_python_part(part)) {
      result += part;
      continue;
    }
    const std::string file = parse_python(part).file;
    const std::size_t at = part.find(file, part.find('('));
    result +=
        std::string(part.substr(0, at)) + change(file) + std::string(part.substr(at + file.size()));
  }
  return result;
}

bool reads_columns(std::string_view text) {
  const auto parts = reward_parts(text);
  return std::any_of(parts.begin(), parts.end(), is_python_part);
}

double weighted_total(const NamedRewards& rewards, std::span<const WeightedReward> recipe) {
  if (rewards.empty()) {
    throw std::invalid_argument("the rollout carries no reward");
  }
  double weighted = 0.0;
  std::string missing;
  bool any = false;
  for (const WeightedReward& wanted : recipe) {
    const double* value = find_reward(rewards, wanted.name);
    if (value == nullptr) {
      missing = wanted.name;
      continue;
    }
    any = true;
    weighted += wanted.weight * *value;
  }
  if (any && !missing.empty()) {
    throw std::invalid_argument("the rollout carries no reward '" + missing +
                                "', which rollout.reward names beside others it does carry");
  }
  if (any) {
    return weighted;
  }
  double sum = 0.0;
  for (const auto& [name, value] : rewards) {
    sum += value;
  }
  return sum;
}

}  // namespace ringside::rl
