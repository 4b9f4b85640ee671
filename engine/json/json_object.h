// JSON object read key by key, with errors that name file and key. Remembers which keys were read.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::engine {

class JsonObject {
 public:
  // The object that a file holds.
  // Throws: std::runtime_error when the file cannot be read or is not one JSON object.
  static JsonObject read(const std::filesystem::path& file);

  // The value of a key, in the type that the function names. A key that is absent or null has none.
  // Throws: std::runtime_error naming file and key on a value of another type; has() never.
  bool has(std::string_view key) const;
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  std::optional<JsonObject> object(std::string_view key) const;
  // One integer or a list of them; empty when absent.
  // Throws: as above.
  std::vector<int64_t> integers(std::string_view key) const;
  // Lists; empty when absent.
  // Throws: as above.
  std::vector<double> numbers(std::string_view key) const;
  std::vector<std::string> texts(std::string_view key) const;

  // The value of a required key: `value`, which one of the functions above returned.
  // Throws: std::runtime_error naming file and key when there is none.
  template <class T>
  T require(std::optional<T> value, std::string_view key) const {
    if (!value) {
      fail(key, "is missing");
    }
    return *std::move(value);
  }

  // A required integer of at least `least`.
  // Throws: std::runtime_error naming file and key when it is missing, smaller or no integer.
  int64_t require_at_least(int64_t least, std::string_view key) const;

  // Throws: std::runtime_error "<file>: '<key>' <problem>".
  [[noreturn]] void fail(std::string_view key, const std::string& problem) const;

  const nlohmann::json& json() const { return json_; }

  // Keys that have a value and that none of the functions above was asked for, in order.
  std::vector<std::string> unread_keys() const;

 private:
  JsonObject(std::string where, nlohmann::json json);
  const nlohmann::json* find(std::string_view key) const;

  std::string where_;
  nlohmann::json json_;
  mutable std::set<std::string, std::less<>> read_;
};

}  // namespace ringside::engine
