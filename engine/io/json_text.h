// JSON that people write and download, with errors in our own words.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace ringside::engine {

// The value of one JSON text.
// Throws: std::runtime_error "LINE:COLUMN: not valid JSON: ..." after `where`, which names the
// file. With line > 0 the text is that one line of a file, and LINE is it.
nlohmann::json parse_json(std::string_view text, const std::string& where, int64_t line = 0);

// The value in a file.
// Throws: std::runtime_error naming the file: it does not exist, is a directory, cannot be read, is
// a git-lfs pointer, or is not JSON.
nlohmann::json read_json_file(const std::filesystem::path& file);

// The whole file. Throws like read_json_file, but for what the text holds.
std::string read_text_file(const std::filesystem::path& file);

// Whether a file that begins with `head` is a git-lfs pointer in place of the file itself.
bool is_lfs_pointer(std::string_view head);

// What to do about one: the end of a sentence that began with the file's name.
std::string lfs_advice();

// A JSON value's kind with its article: "an object", "a number".
std::string kind_of(const nlohmann::json& value);

// What an exception of the JSON library says, without the library's own label.
std::string json_problem(const nlohmann::json::exception& error);

}  // namespace ringside::engine
