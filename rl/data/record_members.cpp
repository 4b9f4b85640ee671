#include "rl/data/record_members.h"

#include <algorithm>
#include <utility>

namespace ringside::rl {
namespace {

using Record = nlohmann::ordered_json;

}  // namespace

const Record* find_member(const Record& record, const std::string& key) {
  if (!record.is_object()) {
    return nullptr;
  }
  if (record.contains(key)) {
    return &record.at(key);
  }
  for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
    const std::string head = key.substr(0, dot);
    if (record.contains(head)) {
      return find_member(record.at(head), key.substr(dot + 1));
    }
  }
  return nullptr;
}

const Record& member(const Record& line, const std::string& key, const std::string& meaning) {
  if (const Record* found = find_member(line, key)) {
    return *found;
  }
  std::string names;
  for (const auto& [name, value] : line.items()) {
    names += (names.empty() ? "\"" : ", \"") + name + "\"";
  }
  throw std::runtime_error("has no \"" + key + "\" (" + meaning + "); it has " +
                           (names.empty() ? "nothing" : names));
}

std::string text_member(const Record& line, const std::string& key, const std::string& meaning) {
  const Record& value = member(line, key, meaning);
  if (!value.is_string()) {
    throw std::runtime_error("\"" + key + "\" is " + engine::kind_of(value) +
                             ", expected a string");
  }
  return value.get<std::string>();
}

int64_t record_word(const Record& record, const RecordChoice& choice) {
  const std::string word =
      text_member(record, choice.member, choice.key + ", which " + choice.asked_by + " reads");
  const auto found = std::find(choice.words.begin(), choice.words.end(), word);
  if (found == choice.words.end()) {
    std::string known;
    for (const std::string& one : choice.words) {
      known += (known.empty() ? "" : " or ") + one;
    }
    throw std::runtime_error("\"" + choice.member + "\" is \"" + word + "\", and " +
                             choice.asked_by + " has none for it; expected " + known);
  }
  return found - choice.words.begin();
}

int64_t record_kind(const Record& record, std::span<const RecordChoice> choices) {
  int64_t kind = 0;
  for (const RecordChoice& choice : choices) {
    kind = kind * static_cast<int64_t>(choice.words.size()) + record_word(record, choice);
  }
  return kind;
}

Conversation conversation_of(const Record& record, const Record& list, const DataConfig& config) {
  if (config.chat_template == ChatTemplate::kNone) {
    throw std::invalid_argument(
        "messages, but data.chat_template is none; expected model, chatml or llama3");
  }
  if (!list.is_array() || list.empty()) {
    throw std::invalid_argument("messages are " +
                                std::string(list.is_array() ? "empty" : list.type_name()) +
                                ", expected an array of {\"role\", \"content\"}");
  }
  for (const Record& message : list) {
    if (!message.is_object()) {
      throw std::invalid_argument("a message is " + engine::kind_of(message) +
                                  ", expected {\"role\", \"content\"}" +
                                  (message.is_string() || message.is_array()
                                       ? "; in a file of columns, expected an object for each "
                                         "record"
                                       : ""));
    }
    if (text_member(message, "role", "of a chat message").empty()) {
      throw std::invalid_argument("a chat message has an empty role");
    }
  }
  Conversation conversation{list, record.contains("tools") ? record.at("tools") : Record()};
  if (config.chat_template != ChatTemplate::kModel) {
    plain_messages(conversation);  // throws for what the other templates cannot render
  }
  return conversation;
}

}  // namespace ringside::rl
