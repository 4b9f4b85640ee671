// Members of a record by key, and what a failure to use a record says. Torch-free.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>

#include "engine/json/json_text.h"
#include "rl/config/config.h"
#include "rl/config/record_choices.h"
#include "rl/data/chat_format.h"

namespace ringside::rl {

// The member of a record under a key, or under a path of keys with dots between ("a.b"); nullptr
// when there is none. A member whose name has the dots comes first.
const nlohmann::ordered_json* find_member(const nlohmann::ordered_json& record,
                                          const std::string& key);

// The same. meaning: what the key is, for the message.
// Throws: std::runtime_error that lists the members that the record has.
const nlohmann::ordered_json& member(const nlohmann::ordered_json& record, const std::string& key,
                                     const std::string& meaning);

// A member that is a string.
// Throws: std::runtime_error as above, and for a member of another type.
std::string text_member(const nlohmann::ordered_json& record, const std::string& key,
                        const std::string& meaning);

// The place of the word that a record has for the choice.
// Throws: std::runtime_error when it has none, or another one.
int64_t record_word(const nlohmann::ordered_json& record, const RecordChoice& choice);

// The kind of a record, by the words that it has for these choices; 0 without choices.
// Throws: as record_word().
int64_t record_kind(const nlohmann::ordered_json& record, std::span<const RecordChoice> choices);

// The conversation of a record whose messages are `list`.
// Throws: std::invalid_argument or std::runtime_error for a list that is no conversation, and where
// data.chat_template cannot render one.
Conversation conversation_of(const nlohmann::ordered_json& record,
                             const nlohmann::ordered_json& list, const DataConfig& config);

// Calls `use`.
// Throws: std::runtime_error "PLACE: ..." for what it throws; ChatUnavailable unchanged.
template <class Use>
void use_record(const std::string& place, const Use& use) {
  try {
    use();
  } catch (const ChatUnavailable&) {
    throw;
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(place + ": " + engine::json_problem(error));
  } catch (const std::exception& error) {
    throw std::runtime_error(place + ": " + error.what());
  }
}

}  // namespace ringside::rl
