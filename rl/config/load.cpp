#include "rl/config/load.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "rl/config/checks.h"
#include "rl/config/presets.h"
#include "rl/config/renamed.h"
#include "rl/config/schema.h"
#include "rl/config/unread_keys.h"
#include "rl/config/yaml_source.h"

namespace ringside::rl {
namespace {

template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

// Sets one slot from its text. Returns "", or the problem and what was expected.
class Setter {
 public:
  explicit Setter(const SourceValue& source) : source_(source) {}

  std::string operator()(const IntegerSlot& slot) const { return set_number(slot, "an integer"); }
  std::string operator()(const RealSlot& slot) const { return set_number(slot, "a number"); }
  std::string operator()(const BoolSlot& slot) const {
    if (source_.text != "true" && source_.text != "false") {
      return wrong("true or false");
    }
    *slot.value = source_.text == "true";
    return "";
  }
  std::string operator()(const TextSlot& slot) const { return set_text(*slot.value, slot.resolve); }
  std::string operator()(const PathSlot& slot) const { return set_text(*slot.value, slot.resolve); }
  std::string operator()(const ChoiceSlot& slot) const {
    const auto found = std::find(slot.names.begin(), slot.names.end(), source_.text);
    if (found != slot.names.end()) {
      slot.set(static_cast<std::size_t>(found - slot.names.begin()));
      return "";
    }
    std::string list;
    for (const auto name : slot.names) {
      list.append(list.empty() ? "" : ", ").append(name);
    }
    return wrong((slot.names.size() > 1 ? "one of " : "") + list) +
           value_suggestion(source_.key, source_.text, slot.names);
  }

 private:
  template <class NumberSlot>
  std::string set_number(const NumberSlot& slot, const std::string& kind) const {
    using T = std::remove_pointer_t<decltype(slot.value)>;
    const std::optional<T> value = parse_number<T>(source_.text);
    if (!value) {
      return wrong(kind + ", " + slot.range.describe());
    }
    if (!slot.range.holds(static_cast<double>(*value))) {
      return wrong(slot.range.describe());
    }
    *slot.value = *value;
    return "";
  }
  std::string set_text(std::string& value, ResolvePaths resolve) const {
    try {
      value = source_.text.empty() || resolve == nullptr ? source_.text
                                                         : resolve(source_.text, source_.base);
      return "";
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
  }
  std::string wrong(const std::string& expected) const {
    return "is " + (source_.text.empty() ? "empty" : "\"" + source_.text + "\"") + ", expected " +
           expected;
  }

  const SourceValue& source_;
};

std::optional<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  // Opening a folder succeeds on Linux; only reading it fails.
  if (!in || std::filesystem::is_directory(path)) {
    return std::nullopt;
  }
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void append(std::vector<SourceValue>& to, std::vector<SourceValue> from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

// The user's values, lowest precedence first.
std::vector<SourceValue> read_sources(const std::vector<std::filesystem::path>& files,
                                      const std::vector<std::string>& overrides,
                                      WrittenAt& written_at, std::vector<std::string>& errors) {
  std::vector<SourceValue> values;
  auto note_places = [&, done = std::size_t{0}](int place) mutable {
    for (; done < values.size(); ++done) {
      written_at[values[done].key] = place;
    }
  };
  int place = 0;
  for (const auto& file : files) {
    const auto text = read_file(file);
    if (!text) {
      errors.push_back(file.string() + ": cannot be read, expected a YAML file");
      continue;
    }
    append(values, flatten_yaml({file.string(), *text, file.parent_path()}, errors));
    note_places(place++);
  }
  for (const auto& assignment : overrides) {
    append(values, flatten_override(assignment, errors));
  }
  note_places(place);
  return values;
}

// Held-out data that nothing evaluates, because nobody said how often. eval.every 0 is taken at
// its word where it is written.
std::vector<Mistake> unused_held_out_data(const Config& c, const WrittenAt& written_at) {
  std::vector<Mistake> mistakes;
  if (c.eval.every == 0 && !written_at.contains("eval.every")) {
    for (const auto& [key, value] :
         {std::pair{"data.eval", &c.data.eval}, std::pair{"data.sft_eval", &c.data.sft_eval},
          std::pair{"eval.sets", &c.eval.sets}}) {
      if (!value->empty()) {
        mistakes.push_back({key, "is " + *value +
                                     ", but eval.every is not set and nothing would be evaluated; "
                                     "expected eval.every above 0, or eval.every 0 for never"});
      }
    }
  }
  return mistakes;
}

// Every mistake of the whole configuration; at most one kind of check speaks about a key.
std::vector<Mistake> all_mistakes(const Config& config, const Config& base,
                                  const WrittenAt& written_at) {
  std::vector<Mistake> mistakes = check_combinations(config);
  for (auto& more :
       {unread_keys(config, base, written_at), unused_held_out_data(config, written_at)}) {
    const std::vector<Mistake> before = mistakes;
    for (const Mistake& mistake : more) {
      const bool known = std::any_of(before.begin(), before.end(), [&](const Mistake& other) {
        return other.key == mistake.key;
      });
      if (!known) {
        mistakes.push_back(mistake);
      }
    }
  }
  return mistakes;
}

// The preset's values, to be applied before `written`; none for a name that does not exist (that
// value's own error is reported where it is applied).
std::vector<SourceValue> read_preset(const std::vector<SourceValue>& written) {
  const auto last = std::find_if(written.rbegin(), written.rend(), [](const SourceValue& value) {
    return value.key == "algorithm.preset";
  });
  if (last == written.rend()) {
    return {};
  }
  const auto names = preset_names();
  if (std::find(names.begin(), names.end(), last->text) == names.end()) {
    return {};
  }
  const std::string place = "preset " + last->text;
  std::vector<SourceValue> values;
  for (const auto& [key, text] : preset_values(last->text)) {
    values.push_back({std::string(key), std::string(text), place, place, {}});
  }
  return values;
}

// Puts a value under a dotted key, making the sections on the way.
void insert(YAML::Node node, std::string_view key, const YAML::Node& value) {
  const auto dot = key.find('.');
  if (dot == std::string_view::npos) {
    node[std::string(key)] = value;
  } else {
    insert(node[std::string(key.substr(0, dot))], key.substr(dot + 1), value);
  }
}

}  // namespace

LoadedConfig load_config(const std::vector<std::filesystem::path>& files,
                         const std::vector<std::string>& overrides, ConfigUse use) {
  LoadedConfig loaded;
  WrittenAt written_at;
  const auto written = read_sources(files, overrides, written_at, loaded.errors);

  std::map<std::string, std::string> where;
  std::map<std::string, Slot> slots;
  for (Field& field : fields_of(loaded.config)) {
    loaded.origins[field.key] = where[field.key] = "default";
    slots.emplace(field.key, std::move(field.slot));
  }
  const auto apply = [&](const std::vector<SourceValue>& part) {
    for (const SourceValue& value : part) {
      const std::string wrong = std::visit(Setter(value), slots.at(value.key));
      if (!wrong.empty()) {
        loaded.errors.push_back(value.where + ": " + value.key + ": " + wrong);
      }
      loaded.origins[value.key] = value.origin;
      where[value.key] = value.where;
    }
  };
  apply(read_preset(written));
  const Config base = loaded.config;
  apply(written);
  const std::vector<Mistake> mistakes = use == ConfigUse::kRun
                                            ? all_mistakes(loaded.config, base, written_at)
                                            : check_combinations(loaded.config);
  for (const Mistake& mistake : mistakes) {
    loaded.errors.push_back(where.at(mistake.key) + ": " + mistake.key + ": " + mistake.text);
  }
  return loaded;
}

Config load_config_or_throw(const std::vector<std::filesystem::path>& files,
                            const std::vector<std::string>& overrides) {
  LoadedConfig loaded = load_config(files, overrides);
  if (!loaded.ok()) {
    std::string text;
    for (const std::string& error : loaded.errors) {
      text += (text.empty() ? "" : "\n") + error;
    }
    throw std::invalid_argument(text);
  }
  return std::move(loaded.config);
}

std::string dump(const Config& config) {
  Config copy = config;
  YAML::Node root(YAML::NodeType::Map);
  for (const Field& field : fields_of(copy)) {
    insert(root, field.key, YAML::Node(value_text(field.slot)));
  }
  YAML::Emitter out;
  out << root;
  return std::string(out.c_str()) + "\n";
}

}  // namespace ringside::rl
