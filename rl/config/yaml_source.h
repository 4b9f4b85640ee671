// A YAML file as a flat list of dotted keys, each with the place it was written at.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::rl {

struct SourceValue {
  std::string key;             // dotted; always a known key
  std::string text;            // the scalar as written, without quotes
  std::string where;           // "recipe.yaml:12:3", or "command line": the head of an error line
  std::string origin;          // "recipe.yaml:12", or "command line": what `ringside check` prints
  std::filesystem::path base;  // folder that relative paths are relative to
};

struct SourceText {
  std::string name;  // how errors call it
  std::string_view yaml;
  std::filesystem::path base;  // folder of relative paths
};

// Flattens one YAML document. Mistakes (syntax, duplicate and unknown keys, a mapping where a value
// belongs and the reverse) are appended to `errors`, "name:line:column: key: what was wrong", and
// leave that key out.
std::vector<SourceValue> flatten_yaml(const SourceText& source, std::vector<std::string>& errors);

// The same for one "key.sub=value" of the command line. The value is taken as it stands, without
// YAML quoting.
std::vector<SourceValue> flatten_override(std::string_view assignment,
                                          std::vector<std::string>& errors);

}  // namespace ringside::rl
