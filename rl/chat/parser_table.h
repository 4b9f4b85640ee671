// The message parsers by name, and the choice of one for a model. Torch-free.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rl/chat/formats.h"
#include "rl/chat/message_parser.h"
#include "rl/chat/reasoning.h"

namespace ringside::rl {

// The names, in the order of the table.
std::vector<std::string> message_parser_names();

// The parser of that name.
// Throws: std::invalid_argument for an unknown name, with all names.
std::unique_ptr<MessageParser> make_message_parser(std::string_view name,
                                                   const ParserOptions& options);

// How the reasoning of a completion begins, by the end of its rendered prompt.
// Throws: as make_message_parser().
ReasoningStart reasoning_start(std::string_view name, std::string_view prompt);

// The name of the parser that reads what the model of a directory writes: by the markers that its
// chat templates mention (chat_template.jinja and additional_chat_templates/*.jinja, else
// "chat_template" of tokenizer_config.json), else by model_type of config.json.
// Throws: std::invalid_argument naming the directory when no parser is known for it, with all
// names; std::runtime_error when a file cannot be read.
std::string choose_message_parser(const std::filesystem::path& model);

}  // namespace ringside::rl
