#include "engine/json/json_object.h"

#include <limits>
#include <stdexcept>
#include <utility>

#include "engine/json/json_text.h"

namespace ringside::engine {

JsonObject::JsonObject(std::shared_ptr<Notes> notes, std::vector<std::string> path,
                       nlohmann::json json)
    : notes_(std::move(notes)),
      path_(std::move(path)),
      json_(std::move(json)),
      read_(std::make_shared<std::set<std::string, std::less<>>>()) {}

JsonObject JsonObject::read(const std::filesystem::path& file) {
  nlohmann::json json = parse_json(quote_python_numbers(read_text_file(file)), file.string());
  if (!json.is_object()) {
    throw std::runtime_error(file.string() + ": holds " + kind_of(json) +
                             ", expected a JSON object");
  }
  return {std::make_shared<Notes>(Notes{file.string(), {}, {}}), {}, std::move(json)};
}

void JsonObject::refuse(std::string_view key, const std::string& problem) const {
  std::string where;
  for (const std::string& outer : path_) {
    where += "'" + outer + "': ";
  }
  notes_->refusals.push_back(where + "'" + std::string(key) + "' " + problem);
}

void JsonObject::throw_refusals() const {
  if (notes_->refusals.empty()) {
    return;
  }
  std::string all = notes_->file + ": ";
  for (const std::string& one : notes_->refusals) {
    all += (&one == &notes_->refusals.front() ? "" : "; ") + one;
  }
  throw std::runtime_error(all);
}

void JsonObject::fail(std::string_view key, const std::string& problem) const {
  refuse(key, problem);
  throw_refusals();
  throw std::logic_error("a refusal was not thrown");
}

void JsonObject::pass_over(std::string_view key) const {
  std::string name;
  for (const std::string& outer : path_) {
    name += outer + ".";
  }
  notes_->passed_over.push_back(name.append(key));
}

const nlohmann::json* JsonObject::find(std::string_view key) const {
  read_->emplace(key);
  const auto it = json_.find(key);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

std::vector<std::string> JsonObject::unread_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json_.items()) {
    if (!value.is_null() && !read_->contains(key)) {
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
  std::vector<std::string> path = path_;
  path.emplace_back(key);
  return JsonObject(notes_, std::move(path), *value);
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
