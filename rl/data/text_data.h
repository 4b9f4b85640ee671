// Prompts and supervised examples of data files. Torch-free.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/data/chat_format.h"
#include "rl/data/data_order.h"
#include "rl/data/record_images.h"

namespace ringside::rl {

struct Prompt {
  std::string id;  // the record's "id", or RecordSet::id
  std::string prompt;
  std::string answer;  // the reference answer for rewards; empty if the record has none
  // The record without its prompt as a JSON object, if a reward reads it; else "".
  std::string columns = {};
  std::string place = {};  // "FILE:LINE" or "FILE: row N"
  std::size_t part = 0;    // entry of the list of data files
  // What the answer was in the file ("an array"), if neither text nor a number: then `answer` is
  // its JSON text.
  std::string answer_kind = {};
  bool is_chat = false;                  // rendered by a template
  std::vector<PromptImage> images = {};  // in the order of their places in the text
  int64_t record = 0;                    // its index in the RecordSet of the files
  std::string adapter = {};  // that samples and learns from it; "" = the only one, or none
  int64_t kind = 0;          // record_kind() of data.train's; 0 of other files
};

struct SftExample {
  std::string prompt;  // with completion, or else a conversation
  std::string completion;
  Conversation conversation;
};

// The prompts of data files, and a sentence "FILE:LINE: ..." for each record that cannot be used.
struct PromptFile {
  std::vector<Prompt> items;
  std::vector<std::string> problems;
  std::vector<OrderPart> parts;  // sizes and weights of the entries, with records that are problems
};

// Reads the records of `files` (data_files.h), with prompt and answer under data.prompt_key and
// data.answer_key, which may be paths with dots ("reward_model.ground_truth"). A prompt that is a
// list of chat messages is rendered by data.chat_template, up to the beginning of the assistant's
// turn, with the record's "tools"; so is a text with data.text_prompts user. data.system_prompt and
// data.prompt_suffix are added (prompt_messages.h). A record is a problem if it is no JSON object,
// has neither a string nor messages under prompt_key, or has messages that cannot be rendered. A
// template that writes the same text for different messages is a problem too. So are images that
// record_images() or describe_image() refuse, and records without a word for adapter_choice(), or
// those of data.train for one of record_choices().
// Throws: std::runtime_error naming the file when it cannot be read or has no record, and when the
// template of the model cannot be used at all; as adapter_names().
PromptFile scan_prompts(const std::string& files, const Config& config);

// The files of the images of a prompt, `record` being its Prompt::record.
// Throws: as record_images.
std::vector<EncodedImage> prompt_images(RecordSet& records, int64_t record,
                                        const DataConfig& config);

// The files of the images of a record of fine-tuning.
// Throws: as record_images.
std::vector<EncodedImage> sft_images(RecordSet& records, int64_t record, const DataConfig& config);

// The items of scan_prompts.
// Throws: std::runtime_error for the first problem too.
std::vector<Prompt> read_prompts(const std::string& files, const Config& config);

// The example of one record: a conversation under data.messages_key, or else a prompt and a
// completion. Its images are placeholders; sft_images() has them.
// Throws: std::runtime_error "PLACE: ..." when it is neither, is a conversation without a template,
// or has an image without data.image_key.
SftExample parse_sft_example(const nlohmann::ordered_json& record, const std::string& place,
                             const DataConfig& config);

}  // namespace ringside::rl
