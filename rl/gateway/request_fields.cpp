#include "rl/gateway/request_fields.h"

#include "rl/gateway/session.h"

namespace ringside::rl {
namespace {

using nlohmann::ordered_json;

[[noreturn]] void refuse(const char* key, const std::string& expected) {
  throw RequestRefused(
      400, std::string("\"") + key + "\" is missing or malformed; expected " + expected);
}

}  // namespace

RequestFields::RequestFields(const ordered_json& body) : body_(body) {
  if (!body.is_object()) {
    throw RequestRefused(400, "the body, or an object in it, is no JSON object");
  }
}

const ordered_json* RequestFields::find(const char* key) const {
  const auto found = body_.find(key);
  return found == body_.end() || found->is_null() ? nullptr : &*found;
}

const ordered_json& RequestFields::required(const char* key) const {
  const ordered_json* value = find(key);
  if (value == nullptr) {
    throw RequestRefused(400, std::string("\"") + key + "\" is missing");
  }
  return *value;
}

std::string RequestFields::text(const char* key) const {
  const ordered_json* value = find(key);
  if (value == nullptr) {
    return "";
  }
  if (!value->is_string()) {
    refuse(key, "a text");
  }
  return value->get<std::string>();
}

bool RequestFields::flag(const char* key) const {
  const ordered_json* value = find(key);
  if (value != nullptr && !value->is_boolean()) {
    refuse(key, "true or false");
  }
  return value != nullptr && value->get<bool>();
}

int64_t RequestFields::integer(const char* key, int64_t absent, int64_t low, int64_t high) const {
  const ordered_json* value = find(key);
  if (value == nullptr) {
    return absent;
  }
  if (!value->is_number_integer() || value->get<int64_t>() < low || value->get<int64_t>() > high) {
    refuse(key, "an integer in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
  }
  return value->get<int64_t>();
}

std::vector<std::string> RequestFields::texts(const char* key) const {
  const ordered_json* value = find(key);
  if (value == nullptr) {
    return {};
  }
  const ordered_json list = value->is_array() ? *value : ordered_json::array({*value});
  std::vector<std::string> all;
  for (const ordered_json& one : list) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty()) {
      refuse(key, "a text or a list of texts, none of them empty");
    }
    all.push_back(one.get<std::string>());
  }
  return all;
}

}  // namespace ringside::rl
