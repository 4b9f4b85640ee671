// The chat requests of one rollout: which recorded tokens a request continues, and which tokens it
// adds to them. Torch-free.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/data/chat_format.h"
#include "rl/gateway/token_tree.h"

namespace ringside::rl {

// Conversations as text and text as ids, for all rollouts of a worker. Thread safety: any threads;
// templates are rendered one at a time.
class ChatText {
 public:
  // `tokenizer` must outlive this.
  ChatText(ChatFormat format, const engine::Tokenizer& tokenizer);

  // Blocks and throws: as ChatFormat::prompt() and ChatFormat::text().
  std::string prompt(const Conversation& conversation);
  std::string whole(const Conversation& conversation);
  // What the template writes after an assistant's message ("<|im_end|>\n") of a conversation with
  // these tools; some templates refuse to render without any. nullopt if it cannot be told: the
  // template refuses a conversation of a question and an answer, or does not write the answer as it
  // is.
  std::optional<std::string> closing(const nlohmann::ordered_json& tools);

  const engine::Tokenizer& tokenizer() const { return tokenizer_; }
  // Ids of a whole text, with what the tokenizer puts before one.
  std::vector<int64_t> encode(const std::string& text) const;

 private:
  struct Closing {
    nlohmann::ordered_json tools;
    std::optional<std::string> text;
  };

  std::mutex mutex_;  // guards format_ and closing_
  ChatFormat format_;
  std::optional<Closing> closing_;  // the last one asked for
  const engine::Tokenizer& tokenizer_;
};

class ChatTurns {
 public:
  // Tokens of a request: those of a recorded sequence, then ids.
  struct Context {
    int64_t end = 0;
    std::vector<int64_t> ids = {};
    // Of a chat request: as asked, with the reasoning of replies that are recorded; and as a text.
    Conversation conversation = {};
    std::string prompt = {};
  };

  // A request whose messages begin with a recorded request and its reply continues these tokens;
  // only what follows is rendered and encoded. The longest such beginning counts. It does not count
  // if the template renders it in another way once other messages follow (many remove reasoning
  // from turns before the last question), and if it renders the reply elsewhere than behind the
  // prompt or without its reasoning (that of DeepSeek R1). A request without one is encoded from
  // its first message.
  // Shapes: messages as canonical_messages() gives them.
  // Blocks and throws: as ChatText.
  Context context(ChatText& text, const Conversation& asked) const;

  // Records a reply whose tokens end the sequence `end`. reply: a canonical message.
  // stop: the id that ended it, if one did.
  void add(Context asked, nlohmann::ordered_json reply, int64_t end, std::optional<int64_t> stop);

 private:
  struct Turn {
    Conversation conversation;  // with the reply
    std::string prompt;
    int64_t end;
    std::optional<int64_t> stop;
  };

  std::optional<std::vector<int64_t>> ids_after(ChatText& text, const Turn& turn,
                                                const std::string& prompt) const;

  std::vector<Turn> turns_;
};

}  // namespace ringside::rl
