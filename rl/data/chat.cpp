#include "rl/data/chat.h"

#include <stdexcept>

namespace ringside::rl {
namespace {

constexpr const char* kAssistant = "assistant";

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\n\r\v\f";
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

ChatPiece marker(const char* text, bool learned = false) {
  return {text, learned ? 0 : std::string::npos, true};
}

void add_chatml(const ChatMessage& message, std::vector<ChatPiece>& pieces) {
  const bool learned = message.role == kAssistant;
  const std::string head = message.role + "\n";
  pieces.push_back(marker("<|im_start|>"));
  pieces.push_back({head + message.content, learned ? head.size() : std::string::npos});
  pieces.push_back(marker("<|im_end|>", learned));
  pieces.push_back({"\n"});
}

void add_llama3(const ChatMessage& message, std::vector<ChatPiece>& pieces) {
  const bool learned = message.role == kAssistant;
  pieces.push_back(marker("<|start_header_id|>"));
  pieces.push_back({message.role});
  pieces.push_back(marker("<|end_header_id|>"));
  pieces.push_back({"\n\n" + trimmed(message.content), learned ? 2 : std::string::npos});
  pieces.push_back(marker("<|eot_id|>", learned));
}

}  // namespace

std::vector<ChatPiece> chat_pieces(const std::vector<ChatMessage>& messages,
                                   ChatTemplate chat_template) {
  std::vector<ChatPiece> pieces;
  if (chat_template == ChatTemplate::kLlama3) {
    pieces.push_back(marker("<|begin_of_text|>"));
  }
  for (const ChatMessage& message : messages) {
    if (message.role.empty()) {
      throw std::invalid_argument("a chat message has an empty role");
    }
    switch (chat_template) {
      case ChatTemplate::kChatml:
        add_chatml(message, pieces);
        break;
      case ChatTemplate::kLlama3:
        add_llama3(message, pieces);
        break;
      case ChatTemplate::kNone:
      case ChatTemplate::kModel:
        throw std::invalid_argument(
            "chat messages, but data.chat_template is neither chatml nor llama3");
    }
  }
  return pieces;
}

std::string chat_prompt(const std::vector<ChatMessage>& messages, ChatTemplate chat_template) {
  std::string text;
  for (const ChatPiece& piece : chat_pieces(messages, chat_template)) {
    text += piece.text;
  }
  return text + (chat_template == ChatTemplate::kLlama3
                     ? "<|start_header_id|>assistant<|end_header_id|>\n\n"
                     : "<|im_start|>assistant\n");
}

}  // namespace ringside::rl
