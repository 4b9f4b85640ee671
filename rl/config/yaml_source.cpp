#include "rl/config/yaml_source.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "rl/config/data_files.h"
#include "rl/config/eval_sets.h"
#include "rl/config/rejections.h"
#include "rl/config/schema.h"
#include "rl/config/suggest.h"

namespace ringside::rl {
namespace {

bool is_known(std::string_view key) {
  const auto& keys = known_keys();
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// The keys below a section, comma separated; "" when `name` is no section.
std::string keys_of_section(std::string_view name) {
  const std::string prefix = std::string(name) + ".";
  std::string list;
  for (const std::string& key : known_keys()) {
    if (!key.starts_with(prefix)) {
      continue;
    }
    list += (list.empty() ? "" : ", ") + key.substr(prefix.size());
  }
  return list;
}

// A list or a mapping on one line, as it may stand on the command line too.
std::string flow_text(const YAML::Node& list) {
  YAML::Emitter out;
  out.SetMapFormat(YAML::Flow);
  out.SetSeqFormat(YAML::Flow);
  out << YAML::Clone(list);
  return out.c_str();
}

// A list of texts as JSON. Any other element becomes null, which the key's check refuses.
std::string texts_as_json(const YAML::Node& list) {
  auto texts = nlohmann::json::array();
  for (const YAML::Node& text : list) {
    texts.push_back(text.IsScalar() ? nlohmann::json(text.Scalar()) : nlohmann::json());
  }
  return texts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class Flattener {
 public:
  Flattener(const SourceText& source, std::vector<std::string>& errors)
      : source_(source), errors_(errors) {}

  // Adds everything below a mapping; `prefix` is its dotted name, "" for the document.
  void walk(const YAML::Node& mapping, const std::string& prefix) {
    std::map<std::string, YAML::Mark> seen;
    // yaml-cpp 0.7 keeps both entries of a duplicate key and looks up the first: only iteration
    // shows the second.
    for (const auto& entry : mapping) {
      const YAML::Mark mark = entry.first.Mark();
      if (!entry.first.IsScalar()) {
        error(mark, prefix.empty() ? "document" : prefix, "has a key that is not a word");
        continue;
      }
      const std::string key = (prefix.empty() ? "" : prefix + ".") + entry.first.Scalar();
      const auto [first, inserted] = seen.emplace(key, mark);
      if (!inserted) {
        error(mark, key,
              "duplicate key; it is already set on line " + std::to_string(first->second.line + 1));
        continue;
      }
      visit(key, mark, entry.second);
    }
  }

  std::vector<SourceValue> take() && { return std::move(values_); }

 private:
  void visit(const std::string& key, const YAML::Mark& mark, const YAML::Node& node) {
    if (is_known(key)) {
      add_value(key, mark, node);
      return;
    }
    const std::string section_keys = keys_of_section(key);
    if (section_keys.empty()) {
      // An unknown mapping is reported by its leaves, because those names can be translated.
      if (node.IsMap() && node.size() > 0) {
        walk(node, key);
      } else {
        error(mark, key, suggestion(key));
      }
    } else if (node.IsMap()) {
      walk(node, key);
    } else if (!node.IsNull()) {  // a section whose keys are all commented out is empty, not wrong
      error(mark, key, "is a section; expected a mapping with keys among " + section_keys);
    }
  }

  void add_value(const std::string& key, const YAML::Mark& mark, const YAML::Node& node) {
    if ((node.IsSequence() && (is_data_files_key(key) || is_rejections_key(key))) ||
        (node.IsMap() && is_eval_sets_key(key))) {
      values_.push_back(
          {key, flow_text(node), place(mark, true), place(mark, false), source_.base});
    } else if (node.IsSequence() && key == "rollout.stop") {
      values_.push_back(
          {key, texts_as_json(node), place(mark, true), place(mark, false), source_.base});
    } else if (node.IsMap() || node.IsSequence()) {
      error(
          mark, key,
          std::string("is a ") + (node.IsMap() ? "mapping" : "list") + ", expected a single value");
    } else if (node.IsNull()) {
      error(mark, key, "has no value; write \"\" for the empty text");
    } else {
      values_.push_back({key, node.Scalar(), place(mark, true), place(mark, false), source_.base});
    }
  }

  void error(const YAML::Mark& mark, const std::string& key, const std::string& text) {
    errors_.push_back(place(mark, true) + ": " + key + ": " + text);
  }

  std::string place(const YAML::Mark& mark, bool with_column) const {
    std::string text = source_.name;
    text.append(":").append(std::to_string(mark.line + 1));
    if (with_column) {
      text.append(":").append(std::to_string(mark.column + 1));
    }
    return text;
  }

  const SourceText& source_;
  std::vector<std::string>& errors_;
  std::vector<SourceValue> values_;
};

}  // namespace

std::vector<SourceValue> flatten_yaml(const SourceText& source, std::vector<std::string>& errors) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(source.yaml));
    if (documents.size() > 1) {
      errors.push_back(source.name + ": holds " + std::to_string(documents.size()) +
                       " YAML documents, expected one");
      return {};
    }
    if (documents.empty() || documents[0].IsNull()) {
      return {};
    }
    if (!documents[0].IsMap()) {
      errors.push_back(source.name + ":1:1: the document is not a mapping of keys to values");
      return {};
    }
    Flattener flattener(source, errors);
    flattener.walk(documents[0], "");
    return std::move(flattener).take();
  } catch (const YAML::Exception& e) {
    errors.push_back(source.name + ":" + std::to_string(e.mark.line + 1) + ":" +
                     std::to_string(e.mark.column + 1) + ": not valid YAML: " + e.msg);
    return {};
  }
}

std::vector<SourceValue> flatten_override(std::string_view assignment,
                                          std::vector<std::string>& errors) {
  const std::string place = "command line";
  const auto equals = assignment.find('=');
  const std::string key(assignment.substr(0, equals));
  if (equals == std::string_view::npos || key.empty()) {
    errors.push_back(place + ": " + std::string(assignment) + ": expected key.sub=value");
    return {};
  }
  if (!is_known(key)) {
    const std::string section_keys = keys_of_section(key);
    errors.push_back(place + ": " + key + ": " +
                     (section_keys.empty()
                          ? suggestion(key)
                          : "is a section; expected one of its keys, e.g. " + key + "." +
                                section_keys.substr(0, section_keys.find(','))));
    return {};
  }
  return {{key, std::string(assignment.substr(equals + 1)), place, place,
           std::filesystem::current_path()}};
}

}  // namespace ringside::rl
