// JSON parser for files that people write or download, with readable errors.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace ringside::engine {

// Parses one JSON text. `where` names the file. With line > 0 the text is that one line of a file.
// Throws: std::runtime_error with `where`, then "LINE:COLUMN: not valid JSON: ...".
nlohmann::json parse_json(std::string_view text, const std::string& where, int64_t line = 0);

// Parses a file.
// Throws: std::runtime_error naming the file: it does not exist, is a directory, cannot be read, is
// a git-lfs pointer, or is not JSON.
nlohmann::json read_json_file(const std::filesystem::path& file);

// The whole file.
// Throws: as read_json_file, except for its content.
std::string read_text_file(const std::filesystem::path& file);

// The text with NaN, Infinity and -Infinity, where they stand for numbers, as texts of these names.
std::string quote_python_numbers(std::string text);

// Whether a file that begins with `head` is a git-lfs pointer instead of the file itself.
bool is_lfs_pointer(std::string_view head);

// Advice for a git-lfs pointer: the end of a sentence that began with the file's name.
std::string lfs_advice();

// A JSON value's kind with its article: "an object", "a number".
std::string kind_of(const nlohmann::json& value);

// The text of an exception of the JSON library, without the library's own prefix.
std::string json_problem(const nlohmann::json::exception& error);

}  // namespace ringside::engine
