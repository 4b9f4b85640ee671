#include "rl/data/text_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>

#include "engine/json/json_text.h"
#include "rl/config/record_choices.h"
#include "rl/data/prompt_messages.h"
#include "rl/data/record_members.h"
#include "rl/data/record_set.h"
#include "rl/rewards/answer_text.h"
#include "rl/rewards/weighted_rewards.h"

namespace ringside::rl {
namespace {

using Record = nlohmann::ordered_json;

// A string unchanged; any other value as its JSON text, because ids and answers are often numbers.
std::string text_of(const Record& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string other_columns(const Record& record, const DataConfig& config) {
  Record columns = record;
  columns.erase(config.prompt_key);
  return columns.dump(-1, ' ', false, Record::error_handler_t::replace);
}

// What follows the last data.answer_after of an answer, without white space around it.
std::string part_after(const std::string& answer, const DataConfig& config) {
  if (config.answer_after.empty()) {
    return answer;
  }
  const std::size_t at = answer.rfind(config.answer_after);
  if (at == std::string::npos) {
    throw std::invalid_argument("\"" + config.answer_key + "\" has no \"" + config.answer_after +
                                "\" (data.answer_after), which the answer follows");
  }
  return std::string(strip(std::string_view(answer).substr(at + config.answer_after.size())));
}

// Text that goes to the model as it is.
std::string raw_prompt(const std::string& text, const DataConfig& config) {
  if (!config.system_prompt.empty()) {
    throw std::invalid_argument("\"" + config.prompt_key +
                                "\" is text, which cannot have data.system_prompt; expected "
                                "messages, or data.text_prompts user");
  }
  return text + config.prompt_suffix;
}

Prompt parse_prompt(const Record& record, const DataConfig& config, ChatFormat& chat) {
  const Record& value = member(record, config.prompt_key, "data.prompt_key");
  const std::string text =
      value.is_array() ? "" : text_member(record, config.prompt_key, "data.prompt_key");
  Prompt prompt;
  prompt.is_chat = value.is_array() || config.text_prompts == TextPrompts::kUser;
  if (prompt.is_chat) {
    Conversation conversation =
        conversation_of(record, value.is_array() ? value : user_message(text), config);
    conversation.messages = prompt_messages(std::move(conversation.messages), config);
    if (!config.image_key.empty()) {
      conversation.messages = without_image_sources(std::move(conversation.messages));
    }
    prompt.prompt = chat.prompt(conversation);
  } else {
    prompt.prompt = raw_prompt(text, config);
  }
  const Record* answer = find_member(record, config.answer_key);
  if (answer != nullptr && !answer->is_null()) {
    prompt.answer = part_after(text_of(*answer), config);
    prompt.answer_kind = answer->is_string() || answer->is_number() ? "" : engine::kind_of(*answer);
  }
  return prompt;
}

// What is wrong with a template that has written the same text for all prompts though their records
// differ; "" when nothing is.
std::string ignored_messages(const std::vector<Prompt>& prompts, RecordSet& records,
                             const Config& config) {
  const bool same = std::all_of(prompts.begin(), prompts.end(), [&](const Prompt& prompt) {
    return prompt.is_chat && prompt.prompt == prompts.front().prompt;
  });
  if (config.data.chat_template != ChatTemplate::kModel || prompts.size() < 2 || !same) {
    return "";
  }
  const Record first = records.record(0);
  for (int64_t i = 1; i < records.size(); ++i) {
    const Record other = records.record(i);
    const Record* text = find_member(other, config.data.prompt_key);
    if (text != nullptr && *text != *find_member(first, config.data.prompt_key)) {
      return prompts[1].place + ": the chat template of " + config.model.path +
             " writes the same text for this prompt and for the one before: it does not read the "
             "messages";
    }
  }
  return "";
}

}  // namespace

PromptFile scan_prompts(const std::string& files, const Config& config) {
  RecordSet records(files);
  ChatFormat chat(config);
  const bool with_columns = reads_columns(config.rollout.reward);
  const auto adapter = adapter_choice(config);
  // Of what is trained on alone: held-out prompts choose their adapter and nothing else.
  const auto choices =
      files == config.data.train ? record_choices(config) : std::vector<RecordChoice>{};
  PromptFile data;
  data.parts = records.parts();
  for (int64_t i = 0; i < records.size(); ++i) {
    const std::string place = records.place(i);
    try {
      const Record record = records.record(i);
      use_record(place, [&] {
        std::vector<PromptImage> images;  // before a template writes placeholders for them
        for (const EncodedImage& image : record_images(
                 records, i, record, member(record, config.data.prompt_key, "data.prompt_key"),
                 config.data)) {
          images.push_back(describe_image(image));
        }
        Prompt prompt = parse_prompt(record, config.data, chat);
        prompt.images = std::move(images);
        prompt.adapter = adapter ? adapter->words[record_word(record, *adapter)] : "";
        prompt.record = i;
        prompt.kind = record_kind(record, choices);
        prompt.id = record.contains("id") ? text_of(record.at("id")) : records.id(i);
        prompt.columns = with_columns ? other_columns(record, config.data) : "";
        prompt.place = place;
        prompt.part = records.part(i);
        data.items.push_back(std::move(prompt));
      });
    } catch (const ChatUnavailable&) {
      throw;
    } catch (const std::runtime_error& error) {
      data.problems.emplace_back(error.what());
    }
  }
  const std::string ignored =
      data.problems.empty() ? ignored_messages(data.items, records, config) : "";
  if (!ignored.empty()) {
    data.problems.push_back(ignored);
  }
  return data;
}

std::vector<EncodedImage> prompt_images(RecordSet& records, int64_t record,
                                        const DataConfig& config) {
  const Record members = records.record(record);
  const Record& prompt = member(members, config.prompt_key, "data.prompt_key");
  return record_images(records, record, members, prompt, config);
}

std::vector<EncodedImage> sft_images(RecordSet& records, int64_t record, const DataConfig& config) {
  const Record members = records.record(record);
  const std::string& key =
      members.contains(config.messages_key) ? config.messages_key : config.prompt_key;
  return record_images(records, record, members, member(members, key, "data.prompt_key"), config);
}

SftExample parse_sft_example(const nlohmann::ordered_json& record, const std::string& place,
                             const DataConfig& config) {
  SftExample example;
  use_record(place, [&] {
    if (record.contains(config.messages_key)) {
      example.conversation = conversation_of(record, record.at(config.messages_key), config);
      if (!config.image_key.empty()) {
        example.conversation.messages =
            without_image_sources(std::move(example.conversation.messages));
      } else if (has_image_parts(example.conversation.messages)) {
        throw std::invalid_argument(
            "a message has an image or a video, and data.image_key is not set; expected text, or "
            "data.image_key");
      }
    } else {
      const std::string forms = "expected {\"" + config.prompt_key + "\", \"" +
                                config.completion_key + "\"} or {\"" + config.messages_key + "\"}";
      example.prompt = text_member(record, config.prompt_key, forms);
      example.completion = text_member(record, config.completion_key, forms);
    }
  });
  return example;
}

std::vector<Prompt> read_prompts(const std::string& files, const Config& config) {
  PromptFile data = scan_prompts(files, config);
  if (!data.problems.empty()) {
    const std::size_t more = data.problems.size() - 1;
    throw std::runtime_error(
        data.problems.front() +
        (more > 0 ? " (and " + std::to_string(more) + " more lines like it)" : ""));
  }
  return std::move(data.items);
}

}  // namespace ringside::rl
