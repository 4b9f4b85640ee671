#include "rl/config/unread_keys.h"

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>
#include <utility>

#include "rl/config/losses_in_words.h"
#include "rl/config/schema.h"

namespace ringside::rl {
namespace {

// Lengths of rollouts may stand under either task, because a file of configs/context serves both.
constexpr std::array<std::string_view, 2> kLengths = {"rollout.max_prompt_tokens",
                                                      "rollout.max_completion_tokens"};

// Keys of other tasks than rl among those of algorithm.*; they have rules of their own.
bool has_own_task(std::string_view key) {
  return key.starts_with("algorithm.preference.") || key.starts_with("algorithm.reference_");
}

// A rule's key is a whole key, or the beginning of several: it then ends with '.' or '_'.
bool concerns(const UnreadRule& rule, std::string_view key) {
  if (rule.key == "algorithm." && has_own_task(key)) {
    return false;
  }
  if (std::find(kLengths.begin(), kLengths.end(), key) != kLengths.end()) {
    return false;
  }
  const bool several = rule.key.ends_with('.') || rule.key.ends_with('_');
  return key != rule.switch_key && (several ? key.starts_with(rule.key) : key == rule.key);
}

// Why a key is not read: of the table, or of the losses.
struct Unread {
  std::string switch_key;
  std::string reason;
};

// Keys of losses, and of what they clip, are read by those losses alone.
std::optional<Unread> unread_of_losses(const Config& config, std::string_view key) {
  constexpr std::string_view kSection = "algorithm.", kSwitch = "algorithm.loss";
  const PolicyLoss& loss = policy_loss(config.algorithm.loss);
  if (key == "algorithm.clip_low" || key == "algorithm.clip_high") {
    if (!loss.clip_low.empty()) {
      return std::nullopt;
    }
    const auto without =
        losses_that([](const PolicyLoss& other) { return other.clip_low.empty(); });
    return Unread{std::string(kSwitch), "algorithm.loss " + in_words(without, " and ") +
                                            " clip nothing; or another loss"};
  }
  const auto dot = key.rfind('.');
  const std::string_view block =
      dot > kSection.size() ? key.substr(kSection.size(), dot - kSection.size()) : "";
  const auto readers = losses_of_block(block);
  if (readers.empty() || loss.block() == block) {
    return std::nullopt;
  }
  return Unread{std::string(kSwitch),
                "algorithm.loss is another; or loss " + in_words(readers, " or ")};
}

std::optional<Unread> why_unread(const Config& config, std::string_view key) {
  for (const UnreadRule& rule : unread_rules()) {
    if (concerns(rule, key) && !rule.is_read(config)) {
      return Unread{std::string(rule.switch_key), std::string(rule.reason)};
    }
  }
  return key.starts_with("algorithm.") ? unread_of_losses(config, key) : std::nullopt;
}

int place_of(const WrittenAt& written_at, std::string_view key) {
  const auto found = written_at.find(key);
  return found == written_at.end() ? -1 : found->second;
}

std::string shown(const std::string& text) { return text.empty() ? "\"\"" : text; }

std::string sentence(const Unread& rule, const std::string& value, const std::string& fallback) {
  const auto semicolon = rule.reason.find("; or ");
  return "is " + shown(value) + ", but " + rule.reason.substr(0, semicolon) + "; expected " +
         shown(fallback) + ", " + rule.reason.substr(semicolon + 2);
}

}  // namespace

std::vector<Mistake> unread_keys(const Config& config, const Config& base,
                                 const WrittenAt& written_at) {
  Config now = config, before = base, plain;
  const auto values = fields_of(now), bases = fields_of(before), defaults = fields_of(plain);
  std::vector<Mistake> mistakes;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string& key = values[i].key;
    const std::string value = value_text(values[i].slot);
    const std::string fallback = value_text(defaults[i].slot);
    if (value == fallback || value == value_text(bases[i].slot)) {
      continue;
    }
    const std::optional<Unread> rule = why_unread(config, key);
    if (rule && place_of(written_at, rule->switch_key) <= place_of(written_at, key)) {
      mistakes.push_back({key, sentence(*rule, value, fallback)});
    }
  }
  return mistakes;
}

void reset_unread_keys(Config& config) {
  const Config asked = config;
  Config plain;
  auto values = fields_of(config), defaults = fields_of(plain);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!why_unread(asked, values[i].key)) {
      continue;
    }
    std::visit(
        [&](auto& slot) {
          using T = std::decay_t<decltype(slot)>;
          const T& from = std::get<T>(defaults[i].slot);
          if constexpr (std::is_same_v<T, ChoiceSlot>) {
            const auto found = std::find(slot.names.begin(), slot.names.end(), from.get());
            slot.set(static_cast<std::size_t>(found - slot.names.begin()));
          } else {
            *slot.value = *from.value;
          }
        },
        values[i].slot);
  }
}

}  // namespace ringside::rl
