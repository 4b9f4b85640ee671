#include "rl/gateway/chat_messages.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace ringside::rl {
namespace {

using nlohmann::ordered_json;

const ordered_json* member(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_of(const ordered_json& object, const char* key, const char* what) {
  const ordered_json* value = member(object, key);
  if (value == nullptr || !value->is_string()) {
    throw std::invalid_argument(std::string(what) + " has no text \"" + key + "\"");
  }
  return value->get<std::string>();
}

std::string role_of(const ordered_json& message) {
  static constexpr std::array kRoles = {"system", "user", "assistant", "tool", "developer"};
  const std::string role = text_of(message, "role", "it");
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    throw std::invalid_argument("role is \"" + role +
                                "\"; expected system, developer, user, assistant or tool");
  }
  return role == "developer" ? "system" : role;
}

std::string content_of(const ordered_json& message) {
  const ordered_json* content = member(message, "content");
  if (content == nullptr) {
    return "";
  }
  if (content->is_string()) {
    return content->get<std::string>();
  }
  if (!content->is_array()) {
    throw std::invalid_argument("content is neither a text nor a list of parts");
  }
  std::string joined;
  for (const ordered_json& part : *content) {
    if (!part.is_object() || part.value("type", "") != "text") {
      throw std::invalid_argument("content has a part of type " +
                                  (part.is_object() ? part.value("type", "?") : "?") +
                                  "; expected text");
    }
    joined += text_of(part, "text", "a part of content");
  }
  return joined;
}

ordered_json arguments_of(const ordered_json& function) {
  const ordered_json* arguments = member(function, "arguments");
  if (arguments == nullptr) {
    return ordered_json::object();
  }
  if (!arguments->is_string()) {
    return *arguments;
  }
  const auto& text = arguments->get_ref<const std::string&>();
  ordered_json parsed = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  return parsed.is_object() ? parsed : ordered_json(text);
}

ordered_json tool_calls_of(const ordered_json& calls) {
  if (!calls.is_array()) {
    throw std::invalid_argument("tool_calls is no list");
  }
  ordered_json all = ordered_json::array();
  for (const ordered_json& call : calls) {
    const ordered_json* function = call.is_object() ? member(call, "function") : nullptr;
    if (function == nullptr || !function->is_object()) {
      throw std::invalid_argument("a tool call has no object \"function\"");
    }
    ordered_json one = ordered_json::object();
    if (const ordered_json* id = member(call, "id")) {
      one["id"] = *id;
    }
    one["type"] = "function";
    one["function"] = {{"name", text_of(*function, "name", "the function of a tool call")},
                       {"arguments", arguments_of(*function)}};
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace

ordered_json canonical_message(const ordered_json& message) {
  if (!message.is_object()) {
    throw std::invalid_argument("it is no object");
  }
  ordered_json all{{"role", role_of(message)}, {"content", content_of(message)}};
  if (const ordered_json* reasoning = member(message, "reasoning_content")) {
    all["reasoning_content"] = *reasoning;
  }
  if (const ordered_json* calls = member(message, "tool_calls"); calls && !calls->empty()) {
    all["tool_calls"] = tool_calls_of(*calls);
  }
  for (const char* key : {"tool_call_id", "name"}) {
    if (const ordered_json* value = member(message, key)) {
      all[key] = *value;
    }
  }
  return all;
}

ordered_json canonical_messages(const ordered_json& messages) {
  if (!messages.is_array() || messages.empty()) {
    throw std::invalid_argument("messages is no list with at least one message");
  }
  ordered_json all = ordered_json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    try {
      all.push_back(canonical_message(messages[i]));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("messages[" + std::to_string(i) + "]: " + error.what());
    }
  }
  return all;
}

bool same_message(const ordered_json& a, const ordered_json& b) {
  // Members have one order here; inside of arguments their order says nothing.
  const auto comparable = [](const ordered_json& message) {
    nlohmann::json unordered = nlohmann::json::parse(message.dump());
    unordered.erase("reasoning_content");
    return unordered;
  };
  return comparable(a) == comparable(b);
}

}  // namespace ringside::rl
