// JSON object read key by key, with errors that name file and key. Remembers which keys were read.
// An object, its copies and the objects inside it share what was refused and what was passed over.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::engine {

class JsonObject {
 public:
  // The object that a file holds. NaN, Infinity and -Infinity, which Python writes and JSON does
  // not have, become the texts of these names. Throws: std::runtime_error when the file cannot be
  // read or is not one JSON object.
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

  // Notes that a key's value is refused, and goes on, so that all that is wrong is told together.
  void refuse(std::string_view key, const std::string& problem) const;
  // Throws: std::runtime_error "<file>: '<key>' <problem>; '<key>' <problem>..." with all that was
  // refused, if anything was.
  void throw_refusals() const;
  // refuse(), for what leaves nothing to go on with.
  // Throws: as throw_refusals().
  [[noreturn]] void fail(std::string_view key, const std::string& problem) const;

  // Notes that a key has no effect and was not used, for a message about it.
  void pass_over(std::string_view key) const;
  // Those keys in order, each with the keys of the objects around it: "rope_scaling.finetuned".
  const std::vector<std::string>& passed_over() const { return notes_->passed_over; }

  const nlohmann::json& json() const { return json_; }

  // Keys that have a value and that none of the functions above was asked for, in order.
  std::vector<std::string> unread_keys() const;

 private:
  struct Notes {
    std::string file;
    std::vector<std::string> refusals;
    std::vector<std::string> passed_over;
  };

  JsonObject(std::shared_ptr<Notes> notes, std::vector<std::string> path, nlohmann::json json);
  const nlohmann::json* find(std::string_view key) const;

  std::shared_ptr<Notes> notes_;
  std::vector<std::string> path_;  // of keys, from the file's object to this one
  nlohmann::json json_;
  std::shared_ptr<std::set<std::string, std::less<>>> read_;
};

}  // namespace ringside::engine
