#include "tools/init/translator.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "rl/config/load.h"
#include "rl/config/presets.h"
#include "rl/config/renamed.h"
#include "rl/config/suggest.h"

namespace ringside::tools {
namespace {

std::string lower(std::string text) {
  for (char& c : text) {
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

std::optional<bool> as_flag(const std::string& text) {
  const std::string word = lower(text);
  if (word == "true" || word == "yes" || word == "on" || word == "1") {
    return true;
  }
  if (word == "false" || word == "no" || word == "off" || word == "0") {
    return false;
  }
  return std::nullopt;
}

std::optional<double> as_number(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const char* begin = text.data() + (text.starts_with("+") ? 1 : 0);
  const auto [stop, error] = std::from_chars(begin, end, value);
  return error == std::errc{} && stop == end && std::isfinite(value) ? std::optional(value)
                                                                     : std::nullopt;
}

bool is_key(std::string_view name) {
  const auto& keys = rl::known_keys();
  return std::find(keys.begin(), keys.end(), name) != keys.end();
}

// The one of our keys with the same last word; "" where none or several have it.
std::string same_word(std::string_view theirs) {
  const auto last = [](std::string_view key) { return key.substr(key.rfind('.') + 1); };
  std::string found;
  for (const std::string& key : rl::known_keys()) {
    if (last(key) == last(theirs)) {
      if (!found.empty()) {
        return "";
      }
      found = key;
    }
  }
  return found;
}

// "data.shuffle: True, line 12", on one line and not too long for a comment.
std::string place_of(const ForeignValue& value) {
  constexpr std::size_t kLongest = 100;
  std::string text = value.items.empty() ? "null" : value.text();
  std::replace(text.begin(), text.end(), '\n', ' ');
  text = text.size() > kLongest ? text.substr(0, kLongest) + " ..." : text;
  return value.key + ": " + text + ", line " + std::to_string(value.line);
}

// Whether a comment names a key of the file.
bool names_line(const std::string& comment) { return comment.find(", line ") != std::string::npos; }

// Whether two values of a key are equal, as numbers if they are numbers.
bool equal_values(const std::string& a, const std::string& b) {
  const auto x = as_number(a), y = as_number(b);
  return x && y ? *x == *y : a == b;
}

// Whether a value of theirs is of the kind of our key: a number, true or false.
bool fits(const rl::Slot& slot, const std::string& text) {
  if (std::holds_alternative<rl::BoolSlot>(slot)) {
    return as_flag(text).has_value();
  }
  const bool number =
      std::holds_alternative<rl::IntegerSlot>(slot) || std::holds_alternative<rl::RealSlot>(slot);
  return !number || as_number(text).has_value();
}

}  // namespace

std::string number_text(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) {
    return std::to_string(static_cast<int64_t>(value));
  }
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, end);
}

Translator::Translator(const ForeignConfig& config) : config_(config) {
  for (rl::Field& field : rl::fields_of(defaults_)) {
    slots_.emplace(field.key, std::move(field.slot));
  }
  for (const ForeignValue& value : config.values) {
    const auto [place, inserted] = values_.emplace(value.key, &value);
    if (!inserted) {
      left_.push_back({place_of(*place->second), LeftWhy::kNoCounterpart,
                       "line " + std::to_string(value.line) + " sets it again"});
      place->second = &value;
    }
  }
}

void Translator::list(const ForeignValue& value, LeftWhy why, const std::string& reason) {
  if (values_.at(value.key) != &value || listed_.insert(value.key).second) {
    left_.push_back({place_of(value), why, reason});
  }
}

bool Translator::is_settled(const ForeignValue& value) const {
  const std::string place = place_of(value);
  const auto names_it = [&](const Setting& setting) {
    const auto at = setting.comment.find(place);
    const char before = at == std::string::npos || at == 0 ? ' ' : setting.comment[at - 1];
    return at != std::string::npos && before != '.' && before != '_' &&
           !std::isalnum(static_cast<unsigned char>(before));
  };
  return listed_.contains(value.key) || std::any_of(settings_.begin(), settings_.end(), names_it);
}

bool Translator::has(std::string_view key) const {
  const auto found = values_.lower_bound(key);
  return found != values_.end() &&
         (found->first == key ||
          (found->first.starts_with(key) && found->first.substr(key.size()).starts_with(".")));
}

const ForeignValue* Translator::read(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    return nullptr;
  }
  read_.insert(found->first);
  const ForeignValue& value = *found->second;
  return value.unknown.empty() && !value.items.empty() ? &value : nullptr;
}

std::optional<std::string> Translator::text(std::string_view key) {
  const ForeignValue* value = read(key);
  return value == nullptr ? std::nullopt : std::optional(value->text());
}

std::vector<std::string> Translator::items(std::string_view key) {
  const ForeignValue* value = read(key);
  return value == nullptr ? std::vector<std::string>{} : value->items;
}

std::optional<double> Translator::number(std::string_view key) {
  const auto written = text(key);
  const auto value = written ? as_number(*written) : std::nullopt;
  if (written && !value) {
    mistake(key, "is \"" + *written + "\", expected a number");
  }
  return value;
}

std::optional<int64_t> Translator::count(std::string_view key) {
  const auto value = number(key);
  if (value && *value != std::floor(*value)) {
    mistake(key, "is " + number_text(*value) + ", expected a whole number");
    return std::nullopt;
  }
  return value ? std::optional(static_cast<int64_t>(*value)) : std::nullopt;
}

std::optional<bool> Translator::flag(std::string_view key) {
  const auto written = text(key);
  const auto value = written ? as_flag(*written) : std::nullopt;
  if (written && !value) {
    mistake(key, "is \"" + *written + "\", expected true or false");
  }
  return value;
}

std::string Translator::from(std::initializer_list<std::string_view> keys) const {
  std::string all;
  for (const std::string_view key : keys) {
    const auto found = values_.find(key);
    if (found != values_.end()) {
      all += (all.empty() ? "" : "; ") + place_of(*found->second);
    }
  }
  return all;
}

void Translator::mistake(std::string_view key, const std::string& what) {
  const auto found = values_.find(key);
  const std::string line = found == values_.end() ? "" : ":" + std::to_string(found->second->line);
  mistakes_.push_back(config_.file + line + ": " + std::string(key) + ": " + what);
}

std::string Translator::value_of(std::string_view ours) const {
  const auto found = std::find_if(settings_.begin(), settings_.end(),
                                  [&](const Setting& setting) { return setting.key == ours; });
  return found == settings_.end() ? "" : found->text;
}

void Translator::set(std::string_view ours, const std::string& text, const std::string& comment) {
  for (Setting& setting : settings_) {
    if (setting.key != ours) {
      continue;
    }
    if (equal_values(setting.text, text)) {
      const bool new_place = setting.comment.find(comment) == std::string::npos;
      setting.comment += new_place ? "; " + comment : "";
    } else {
      mistakes_.push_back(config_.file + ": " + std::string(ours) + " would be " + setting.text +
                          " (" + setting.comment + ") and " + text + " (" + comment +
                          "); expected one of the two");
    }
    return;
  }
  settings_.push_back({std::string(ours), text, comment});
}

void Translator::set(std::string_view ours, double value, const std::string& comment) {
  set(ours, number_text(value), comment);
}

// A value of theirs as the key here has it. `rest` receives "algorithm.advantage.std: none" where
// the value says two things.
std::string Translator::our_value(const std::string& key, const std::string& text,
                                  std::string* rest) {
  const rl::Slot& slot = slots_.at(key);
  if (std::holds_alternative<rl::BoolSlot>(slot)) {
    const auto value = as_flag(text);
    return value ? (*value ? "true" : "false") : text;
  }
  if (std::holds_alternative<rl::IntegerSlot>(slot) || std::holds_alternative<rl::RealSlot>(slot)) {
    const auto value = as_number(text);
    return value ? number_text(*value) : text;
  }
  const auto* choice = std::get_if<rl::ChoiceSlot>(&slot);
  if (choice == nullptr) {
    return text;
  }
  const std::string word = lower(text);
  if (std::find(choice->names.begin(), choice->names.end(), word) != choice->names.end()) {
    return word;
  }
  for (const rl::RenamedValue& renamed : rl::renamed_values()) {
    if (renamed.key == key && renamed.theirs == word) {
      const auto more = renamed.ours.find(" (and ");
      if (more != std::string_view::npos) {
        *rest = renamed.ours.substr(more + 6, renamed.ours.size() - more - 7);
      }
      return std::string(renamed.ours.substr(0, renamed.ours.find(' ')));
    }
  }
  return text;
}

void Translator::same(std::string_view theirs, std::string_view ours) {
  if (const auto written = text(theirs)) {
    if (!fits(slots_.find(ours)->second, *written)) {
      const bool is_flag = std::holds_alternative<rl::BoolSlot>(slots_.find(ours)->second);
      mistake(theirs,
              "is \"" + *written + "\", expected " + (is_flag ? "true or false" : "a number"));
      return;
    }
    std::string rest;
    set(ours, our_value(std::string(ours), *written, &rest), from({theirs}));
    if (const auto colon = rest.find(": "); colon != std::string::npos) {
      set(rest.substr(0, colon), rest.substr(colon + 2), from({theirs}));
    }
  }
}

void Translator::choose(std::string_view theirs, std::string_view ours, const std::string& if_true,
                        const std::string& if_false) {
  if (const auto value = flag(theirs)) {
    const std::string& chosen = *value ? if_true : if_false;
    if (!chosen.empty()) {
      set(ours, chosen, from({theirs}));
    } else {
      list(*values_.find(theirs)->second, LeftWhy::kDefault, "");
    }
  }
}

void Translator::leave(std::string_view theirs, const std::string& reason) {
  if (const ForeignValue* value = read(theirs)) {
    list(*value, LeftWhy::kNoCounterpart, reason);
  }
}

void Translator::leave_off(std::string_view theirs) {
  if (const ForeignValue* value = read(theirs)) {
    list(*value, LeftWhy::kDefault, "");
  }
}

void Translator::leave_all(std::string_view prefix, const std::string& reason) {
  for (const auto& [key, value] : values_) {
    if (!is_settled(*value) && (key == prefix || key.starts_with(std::string(prefix) + "."))) {
      leave(key, reason);
    }
  }
}

// One key by the table of names: the same value where the table has a key alone.
void Translator::translate_by_name(const ForeignValue& value) {
  if (!value.unknown.empty()) {
    list(value, LeftWhy::kNoCounterpart,
         "its value needs " + value.unknown + ", which this file does not set");
    return;
  }
  if (value.items.empty()) {
    list(value, LeftWhy::kDefault, "");
    return;
  }
  const std::string translated = rl::translate(value.key);
  const std::string ours = translated.empty() ? same_word(value.key) : translated;
  const bool off = value.items.size() == 1 && as_flag(value.items[0]) == false;
  const bool on = value.items.size() == 1 && as_flag(value.items[0]) == true;
  if (is_key(ours)) {
    std::string rest;
    const std::string text = our_value(ours, value.text(), &rest);
    const std::string before = value_of(ours);
    if (!fits(slots_.at(ours), value.text())) {
      list(value, LeftWhy::kNoCounterpart, "is " + ours + " here, of another kind; set it by hand");
    } else if (!before.empty() && !equal_values(before, text)) {
      list(value, LeftWhy::kNoCounterpart, ours + " is " + before + " already");
    } else {
      same(value.key, ours);
    }
    return;
  }
  const auto colon = ours.find(": ");
  if (colon != std::string::npos && is_key(ours.substr(0, colon)) && (on || off)) {
    choose(value.key, ours.substr(0, colon), ours.substr(colon + 2), "");
    return;
  }
  const std::string absent = rl::absent_feature(value.key);
  if (!ours.empty()) {
    list(value, off ? LeftWhy::kDefault : LeftWhy::kNoCounterpart,
         off ? "" : "set by hand: " + ours);
  } else if (!absent.empty()) {
    list(value, off ? LeftWhy::kDefault : LeftWhy::kNoCounterpart, off ? "" : absent);
  } else if (read_.contains(value.key)) {
    list(value, LeftWhy::kDefault, "read with other keys");
  } else {
    list(value, LeftWhy::kUnknown, "");
  }
}

void Translator::drop_defaults() {
  std::map<std::string, std::string, std::less<>> base;
  for (const auto& [key, slot] : slots_) {
    base[key] = rl::value_text(slot);
  }
  const std::string preset = value_of("algorithm.preset");
  for (const auto& [key, text] :
       preset.empty() ? std::vector<rl::PresetValue>{} : rl::preset_values(preset)) {
    base[std::string(key)] = text;
  }
  std::erase_if(settings_, [&](const Setting& setting) {
    if (setting.key == "algorithm.preset" || !equal_values(base[setting.key], setting.text)) {
      return false;
    }
    if (names_line(setting.comment)) {
      left_.push_back({setting.comment, LeftWhy::kDefault, setting.key});
    }
    return true;
  });
}

// Takes out what load_config() would refuse, with its reason.
void Translator::drop_refused() {
  while (true) {
    std::vector<std::string> overrides;
    for (const Setting& setting : settings_) {
      overrides.push_back(setting.key + "=" + setting.text);
    }
    const rl::LoadedConfig loaded = rl::load_config({}, overrides);
    const auto before = settings_.size();
    for (const std::string& error : loaded.errors) {
      std::erase_if(settings_, [&](const Setting& setting) {
        const std::string begin = "command line: " + setting.key + ": ";
        if (!error.starts_with(begin)) {
          return false;
        }
        left_.push_back({setting.comment, LeftWhy::kNoCounterpart,
                         setting.key + " " + error.substr(begin.size())});
        return true;
      });
    }
    if (settings_.size() == before) {
      for (const std::string& error : loaded.errors) {
        to_dos_.push_back("`check` will say: " + error);
      }
      return;
    }
  }
}

void Translator::finish() {
  for (const ForeignValue& value : config_.values) {
    if (values_.at(value.key) == &value && !is_settled(value)) {
      translate_by_name(value);
    }
  }
  if (mistakes_.empty()) {
    drop_defaults();
    drop_refused();
  }
}

}  // namespace ringside::tools
