// Data files of data.train, data.eval, data.sft and data.sft_eval: one path, one pattern, or a list
// with weights. Torch-free.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::rl {

struct DataFileEntry {
  std::string path;              // absolute; may hold the pattern characters * ? [
  std::optional<double> weight;  // above 0; none: no entry of the list names a weight
};

// Whether the key names data files, and so may have a YAML list as its value.
bool is_data_files_key(std::string_view key);

// The absolute, normal form of a path. "~/" at its beginning is the home directory.
// Throws: std::invalid_argument for another user's home directory, and for "~" without HOME.
std::string absolute_path(const std::string& text, const std::filesystem::path& folder);

// The text of such a key with absolute paths. A text that begins with "[" is a list in YAML's flow
// style of paths and {path, weight} mappings; it becomes JSON, which reads back to the same.
// Throws: std::invalid_argument for a list that is not of this form.
std::string absolute_data_files(const std::string& text, const std::filesystem::path& folder);

// The entries of a text that absolute_data_files() has returned. If one entry has a weight, the
// others have weight 1. None for "".
// Throws: std::invalid_argument for a list of another form.
std::vector<DataFileEntry> data_file_entries(const std::string& text);

}  // namespace ringside::rl
