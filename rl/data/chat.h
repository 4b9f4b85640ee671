// Chat templates that need no Python: messages rendered as text, as the models' own templates do.
// Torch-free.
#pragma once

#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

struct ChatMessage {
  std::string role;
  std::string content;
};

// A piece of a rendered chat that is tokenized by itself, because marker tokens stand on both
// sides.
struct ChatPiece {
  std::string text;
  // The model learns the bytes of `text` from this offset on; npos: none.
  std::size_t learned_from = std::string::npos;
  bool marker = false;  // one added token
};

// The whole conversation in pieces. Joined, they are
//   chatml  <|im_start|>ROLE LF CONTENT <|im_end|> LF for each message (Qwen's templates, without
//           a system message of their own and without reasoning or tool sections);
//   llama3  <|begin_of_text|>, then <|start_header_id|>ROLE<|end_header_id|> LF LF CONTENT
//           <|eot_id|> for each message, CONTENT without white space around it.
// CONTENT and the end marker of every message of role assistant are learned.
// Throws: std::invalid_argument for other templates and for a message without a role.
std::vector<ChatPiece> chat_pieces(const std::vector<ChatMessage>& messages,
                                   ChatTemplate chat_template);

// A prompt for completion: the conversation as one text, followed by the header of an assistant
// message.
// Throws: like chat_pieces.
std::string chat_prompt(const std::vector<ChatMessage>& messages, ChatTemplate chat_template);

}  // namespace ringside::rl
