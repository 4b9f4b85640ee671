#include "tools/init/foreign_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "tools/init/shell_words.h"

namespace ringside::tools {
namespace {

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in || std::filesystem::is_directory(file)) {
    throw std::invalid_argument(file.string() +
                                ": cannot be read, expected a configuration file of verl, TRL, "
                                "axolotl or OpenRLHF (YAML, JSON or a shell script)");
  }
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Flattens the mappings of a YAML or JSON document.
class YamlReader {
 public:
  explicit YamlReader(ForeignConfig& config) : config_(config) {}

  void read(const std::string& text) {
    try {
      const std::vector<YAML::Node> documents = YAML::LoadAll(text);
      if (documents.size() != 1 || !documents[0].IsMap()) {
        mistakes_ = config_.file + ":1:1: holds " +
                    (documents.size() > 1 ? std::to_string(documents.size()) + " YAML documents"
                                          : "no mapping of keys to values") +
                    ", expected one mapping";
      } else {
        walk(documents[0], "");
      }
    } catch (const YAML::Exception& error) {
      mistake(error.mark, "", "not valid YAML or JSON: " + error.msg);
    }
    if (!mistakes_.empty()) {
      throw std::invalid_argument(mistakes_);
    }
  }

 private:
  void walk(const YAML::Node& mapping, const std::string& prefix) {
    std::map<std::string, int> seen;
    for (const auto& entry : mapping) {
      if (!entry.first.IsScalar()) {
        mistake(entry.first.Mark(), prefix, "has a key that is not a word");
        continue;
      }
      const std::string key = (prefix.empty() ? "" : prefix + ".") + entry.first.Scalar();
      const int line = entry.first.Mark().line + 1;
      const auto [first, inserted] = seen.emplace(key, line);
      if (!inserted) {
        mistake(entry.first.Mark(), key,
                "is there twice; it is already set on line " + std::to_string(first->second));
      } else {
        add(key, line, entry.second);
      }
    }
  }

  void add(const std::string& key, int line, const YAML::Node& node) {
    if (key == "defaults" && node.IsSequence()) {
      config_.remarks.push_back("line " + std::to_string(line) +
                                ": the files of Hydra's list \"defaults\" are not read");
    } else if (node.IsMap() && node.size() > 0) {
      walk(node, key);
    } else if (node.IsSequence() && node.size() > 0 && !node[0].IsScalar()) {
      for (std::size_t i = 0; i < node.size(); ++i) {
        add(key + "." + std::to_string(i), node[i].Mark().line + 1, node[i]);
      }
    } else {
      ForeignValue value{key, {}, line, node.IsSequence(), ""};
      for (const auto& item : node.IsSequence() ? node : YAML::Node(YAML::NodeType::Sequence)) {
        value.items.push_back(item.IsScalar() ? item.Scalar() : "");
      }
      if (node.IsScalar()) {
        value.items = {node.Scalar()};
      }
      config_.values.push_back(std::move(value));
    }
  }

  void mistake(const YAML::Mark& mark, const std::string& key, const std::string& what) {
    mistakes_.append(mistakes_.empty() ? "" : "\n")
        .append(config_.file + ":" + std::to_string(mark.line + 1) + ":" +
                std::to_string(mark.column + 1) + ": " + (key.empty() ? "" : key + ": ") + what);
  }

  ForeignConfig& config_;
  std::string mistakes_;
};

// Values of one key that name another: ${data.train_batch_size} or ${.save_contents}.
void resolve_references(ForeignConfig& config) {
  std::map<std::string, std::string> texts;
  for (const ForeignValue& value : config.values) {
    texts[value.key] = value.text();
  }
  for (ForeignValue& value : config.values) {
    for (std::string& item : value.items) {
      const auto begin = item.find("${");
      const auto end = item.find('}', begin);
      if (begin == std::string::npos || end == std::string::npos || !value.unknown.empty()) {
        continue;
      }
      const std::string name = item.substr(begin + 2, end - begin - 2);
      const auto found = texts.find(name);
      if (found == texts.end() || found->second.find("${") != std::string::npos) {
        value.unknown = "${" + name + "}";
      } else {
        item = item.substr(0, begin) + found->second + item.substr(end + 1);
      }
    }
  }
}

bool starts_trainer(const std::string& word) {
  static constexpr std::array<std::string_view, 4> kParts = {"verl.trainer", "openrlhf.cli",
                                                             "main_ppo", "axolotl.cli"};
  return word == "trl" || word == "axolotl" || word.ends_with("/trl") ||
         word.ends_with("/axolotl") ||
         std::any_of(kParts.begin(), kParts.end(),
                     [&](std::string_view part) { return word.find(part) != std::string::npos; });
}

bool is_script(const std::string& word) { return word.ends_with(".py"); }

bool is_option(const ShellWord& word) {
  return word.text.starts_with("--") && word.text.size() > 2;
}

std::string with_underscores(std::string text) {
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

// Items of a value of a command line, which may be a list in brackets.
void set_items(ForeignValue& value, const ShellWord& word) {
  value.unknown = word.unknown;
  if (!word.text.starts_with("[")) {
    if (word.text != "null" && word.text != "None") {
      value.items.push_back(word.text);
    }
    return;
  }
  value.is_list = true;
  try {
    for (const auto& item : YAML::Load(word.text)) {
      value.items.push_back(item.IsScalar() ? item.Scalar() : "");
    }
  } catch (const YAML::Exception&) {
    value.items.push_back(word.text);
  }
}

// The settings among the words of a command from `at` on.
void add_settings(const ShellCommand& command, std::size_t at, ForeignConfig& config) {
  while (at < command.size()) {
    const ShellWord& word = command[at++];
    const auto equals = word.text.find('=');
    const std::string_view sign = "+~";
    if (is_option(word)) {
      ForeignValue value{
          with_underscores(word.text.substr(2, equals - 2)), {}, word.line, false, ""};
      if (equals != std::string::npos) {
        set_items(value, {word.text.substr(equals + 1), word.line, word.unknown});
      }
      while (equals == std::string::npos && at < command.size() && !is_option(command[at])) {
        set_items(value, command[at++]);
      }
      value.is_list = value.is_list || value.items.size() > 1;
      if (value.items.empty() && equals == std::string::npos) {
        value.items = {"true"};  // a switch
      }
      config.values.push_back(std::move(value));
    } else if (equals != std::string::npos && equals > 0) {
      const auto begin = std::min(word.text.find_first_not_of(sign), equals);
      ForeignValue value{word.text.substr(begin, equals - begin), {}, word.line, false, ""};
      set_items(value, {word.text.substr(equals + 1), word.line, word.unknown});
      config.values.push_back(std::move(value));
    }
  }
}

void read_script(const std::string& text, ForeignConfig& config) {
  ShellScript script;
  try {
    script = read_shell_script(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(config.file + ":" + error.what());
  }
  config.remarks = std::move(script.remarks);
  std::vector<std::pair<const ShellCommand*, std::size_t>> starts;
  for (const ShellCommand& command : script.commands) {
    const auto found = std::find_if(command.begin(), command.end(), [](const ShellWord& word) {
      return starts_trainer(word.text);
    });
    if (found != command.end()) {
      starts.emplace_back(&command, static_cast<std::size_t>(found - command.begin()));
    }
  }
  if (starts.size() > 1) {
    std::string lines;
    for (const auto& [command, at] : starts) {
      lines += (lines.empty() ? "" : ", ") + std::to_string((*command)[at].line);
    }
    throw std::invalid_argument(config.file + ": starts " + std::to_string(starts.size()) +
                                " trainers, on lines " + lines + "; expected one");
  }
  if (starts.empty()) {
    for (const ShellCommand& command : script.commands) {
      const auto program = std::find_if(command.begin(), command.end(),
                                        [](const ShellWord& word) { return is_script(word.text); });
      add_settings(command, 0, config);
      if (program != command.end()) {
        config.program.push_back(program->text);
      }
    }
    return;
  }
  const auto& [command, at] = starts.front();
  // Before the trainer stand settings of a launcher: accelerate launch --num_processes 4.
  const auto last_bar = std::find_if(command->begin(), command->begin() + static_cast<long>(at),
                                     [](const ShellWord& word) { return word.text == "--"; });
  const bool submitted = last_bar != command->begin() + static_cast<long>(at);
  const ShellCommand launcher(command->begin(), command->begin() + static_cast<long>(at));
  if (!submitted) {
    add_settings(launcher, 0, config);
  }
  for (std::size_t i = at; i < command->size() && i < at + 2; ++i) {
    if ((*command)[i].text.find('=') == std::string::npos && !is_option((*command)[i])) {
      config.program.push_back((*command)[i].text);
    }
  }
  add_settings(*command, at + 1, config);
}

}  // namespace

std::string ForeignValue::text() const {
  std::string all;
  for (const std::string& item : items) {
    all += (all.empty() ? "" : ", ") + item;
  }
  return all;
}

ForeignConfig read_foreign_config(const std::filesystem::path& file) {
  ForeignConfig config;
  config.file = file.string();
  const std::string text = read_text(file);
  const std::string ending = file.extension().string();
  if (ending == ".yaml" || ending == ".yml" || ending == ".json") {
    YamlReader(config).read(text);
  } else {
    read_script(text, config);
  }
  resolve_references(config);
  if (config.values.empty()) {
    throw std::invalid_argument(config.file +
                                ": holds no setting, expected key: value (in a .yaml "
                                "or .json file), key=value or --key value");
  }
  return config;
}

}  // namespace ringside::tools
