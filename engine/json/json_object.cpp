#include "engine/json/json_object.h"

#include <limits>
#include <stdexcept>
#include <utility>

#include "engine/json/json_text.h"

namespace ringside::engine {

JsonObject::JsonObject(std::string where, nlohmann::json json)
    : where_(std::move(where)), json_(std::move(json)) {}

JsonObject JsonObject::read(const std::filesystem::path& file) {
  nlohmann::json json = read_json_file(file);
  if (!json.is_object()) {
    throw std::runtime_error(file.string() + ": holds " + kind_of(json) +
                             ", expected a JSON object");
  }
  return JsonObject(file.string() + ": ", std::move(json));
}

void JsonObject::fail(std::string_view key, const std::string& problem) const {
  throw std::runtime_error(where_ + "'" + std::string(key) + "' " + problem);
}

const nlohmann::json* JsonObject::find(std::string_view key) const {
  read_.emplace(key);
  const auto it = json_.find(key);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

std::vector<std::string> JsonObject::unread_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json_.items()) {
    if (!value.is_null() && !read_.contains(key)) {
      keys.push_back(key);
    }
  }
  return keys;
}

bool JsonObject::has(std::string_view key) const { return find(key) != nullptr; }

std::optional<int64_t> JsonObject::integer(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  const bool fits =
      !value->is_number_unsigned() || value->get<uint64_t>() <= std::numeric_limits<int64_t>::max();
  if (!value->is_number_integer() || !fits) {
    fail(key, "is " + value->dump() + ", expected a whole number of at most 64 bits");
  }
  return value->get<int64_t>();
}

std::optional<double> JsonObject::number(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_number()) {
    fail(key, "is " + value->dump() + ", expected a number");
  }
  return value->get<double>();
}

std::optional<bool> JsonObject::boolean(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_boolean()) {
    fail(key, "is " + value->dump() + ", expected true or false");
  }
  return value->get<bool>();
}

std::optional<std::string> JsonObject::text(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    fail(key, "is " + value->dump() + ", expected text");
  }
  return value->get<std::string>();
}

std::optional<JsonObject> JsonObject::object(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_object()) {
    fail(key, "is " + value->dump() + ", expected an object");
  }
  return JsonObject(where_ + "'" + std::string(key) + "': ", *value);
}

std::vector<int64_t> JsonObject::integers(std::string_view key) const {
  const nlohmann::json* value = find(key);
  std::vector<int64_t> result;
  if (value == nullptr) {
    return result;
  }
  for (const nlohmann::json& item : value->is_array() ? *value : nlohmann::json{*value}) {
    if (!item.is_number_integer()) {
      fail(key, "is " + value->dump() + ", expected a whole number or a list of them");
    }
    result.push_back(item.get<int64_t>());
  }
  return result;
}

std::vector<double> JsonObject::numbers(std::string_view key) const {
  const nlohmann::json* value = find(key);
  std::vector<double> result;
  if (value == nullptr) {
    return result;
  }
  if (!value->is_array()) {
    fail(key, "is " + value->dump() + ", expected a list");
  }
  for (const nlohmann::json& item : *value) {
    if (!item.is_number()) {
      fail(key, "holds " + item.dump() + ", expected numbers");
    }
    result.push_back(item.get<double>());
  }
  return result;
}

std::vector<std::string> JsonObject::texts(std::string_view key) const {
  const nlohmann::json* value = find(key);
  std::vector<std::string> result;
  if (value == nullptr) {
    return result;
  }
  if (!value->is_array()) {
    fail(key, "is " + value->dump() + ", expected a list");
  }
  for (const nlohmann::json& item : *value) {
    if (!item.is_string()) {
      fail(key, "holds " + item.dump() + ", expected text");
    }
    result.push_back(item.get<std::string>());
  }
  return result;
}

int64_t JsonObject::require_at_least(int64_t least, std::string_view key) const {
  const int64_t value = require(integer(key), key);
  if (value < least) {
    fail(key, "is " + std::to_string(value) + ", expected at least " + std::to_string(least));
  }
  return value;
}

}  // namespace ringside::engine
