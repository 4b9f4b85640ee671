#include "rl/config/data_files.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace ringside::rl {
namespace {

constexpr const char* kListForm = "expected a list of paths or {path, weight}";

DataFileEntry read_entry(const YAML::Node& node, const std::filesystem::path& folder) {
  if (node.IsScalar() && !node.Scalar().empty()) {
    return {absolute_path(node.Scalar(), folder), std::nullopt};
  }
  if (!node.IsMap()) {
    throw std::invalid_argument(std::string("has an empty entry or a list in its list; ") +
                                kListForm);
  }
  DataFileEntry entry;
  for (const auto& part : node) {
    const std::string name = part.first.Scalar();
    if (name != "path" && name != "weight") {
      throw std::invalid_argument("has \"" + name + "\" in an entry; " + kListForm);
    }
    if (name == "path" && part.second.IsScalar() && !part.second.Scalar().empty()) {
      entry.path = absolute_path(part.second.Scalar(), folder);
    }
    if (name == "weight") {
      entry.weight = part.second.as<double>(-1.0);
    }
  }
  if (entry.path.empty()) {
    throw std::invalid_argument(std::string("has an entry without a path; ") + kListForm);
  }
  if (entry.weight && (!(*entry.weight > 0) || !std::isfinite(*entry.weight))) {
    throw std::invalid_argument("the weight of " + entry.path + " is not a finite number above 0");
  }
  return entry;
}

std::vector<DataFileEntry> read_list(const std::string& text, const std::filesystem::path& folder) {
  YAML::Node list;
  try {
    list = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    throw std::invalid_argument("is no list: " + error.msg + "; " + kListForm);
  }
  if (!list.IsSequence() || list.size() == 0) {
    throw std::invalid_argument(std::string("is an empty list; ") + kListForm);
  }
  std::vector<DataFileEntry> entries;
  for (const YAML::Node& node : list) {
    entries.push_back(read_entry(node, folder));
  }
  return entries;
}

}  // namespace

bool is_data_files_key(std::string_view key) {
  constexpr std::array<std::string_view, 4> kKeys = {"data.train", "data.eval", "data.sft",
                                                     "data.sft_eval"};
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

std::string absolute_path(const std::string& text, const std::filesystem::path& folder) {
  std::filesystem::path path = text;
  if (text.starts_with('~')) {
    const char* home = std::getenv("HOME");
    if ((text != "~" && !text.starts_with("~/")) || home == nullptr) {
      throw std::invalid_argument("is \"" + text +
                                  "\", whose home directory is not known here; expected a path");
    }
    path = std::filesystem::path(home) / text.substr(std::min<std::size_t>(2, text.size()));
  }
  return std::filesystem::absolute(folder / path).lexically_normal().string();
}

std::string absolute_data_files(const std::string& text, const std::filesystem::path& folder) {
  if (!text.starts_with('[')) {
    return absolute_path(text, folder);
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const DataFileEntry& entry : read_list(text, folder)) {
    nlohmann::ordered_json item{{"path", entry.path}};
    if (entry.weight) {
      item["weight"] = *entry.weight;
    }
    list.push_back(std::move(item));
  }
  return list.dump();
}

std::vector<DataFileEntry> data_file_entries(const std::string& text) {
  if (text.empty()) {
    return {};
  }
  if (!text.starts_with('[')) {
    return {{text, std::nullopt}};
  }
  auto entries = read_list(text, "/");
  const bool weighted = std::any_of(entries.begin(), entries.end(),
                                    [](const DataFileEntry& entry) { return entry.weight; });
  for (DataFileEntry& entry : entries) {
    entry.weight = weighted ? std::optional(entry.weight.value_or(1.0)) : std::nullopt;
  }
  return entries;
}

}  // namespace ringside::rl
