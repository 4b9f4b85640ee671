// YAML file as a flat list of dotted keys, each with its position in the file.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::rl {

struct SourceValue {
  std::string key;             // dotted; always a known key
  std::string text;            // the scalar as written, without quotes
  std::string where;           // "recipe.yaml:12:3", or "command line": start of an error line
  std::string origin;          // "recipe.yaml:12", or "command line": what `ringside check` prints
  std::filesystem::path base;  // folder that relative paths are relative to
};

struct SourceText {
  std::string name;  // its name in error messages
  std::string_view yaml;
  std::filesystem::path base;  // folder of relative paths
};

// Flattens one YAML document. Mistakes (syntax, duplicate and unknown keys, a mapping in place of a
// value or the reverse) are appended to `errors` as "name:line:column: key: what was wrong". A key
// with a mistake is left out.
std::vector<SourceValue> flatten_yaml(const SourceText& source, std::vector<std::string>& errors);

// The same for one "key.sub=value" of the command line. The value is used verbatim, without YAML
// quoting.
// Relative paths are relative to the current folder.
std::vector<SourceValue> flatten_override(std::string_view assignment,
                                          std::vector<std::string>& errors);

}  // namespace ringside::rl
