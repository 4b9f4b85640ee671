// A request of a harness, from its prompt to the record of what was sampled for it. Torch-free.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rl/gateway/chat_turns.h"
#include "rl/gateway/model_request.h"
#include "rl/gateway/reply_reader.h"
#include "rl/gateway/session.h"

namespace ringside::rl {

// Thread safety: none.
class PendingAnswer {
 public:
  // Renders and encodes what the request adds to its session, and counts its samples.
  // parser: as reply_parser(). `text` must outlive this.
  // Throws: RequestRefused as Session::context() and Session::begin(); as reply_parser().
  PendingAnswer(std::shared_ptr<Session> session, ModelRequest asked, ChatText& text,
                const std::string& parser);

  const ModelRequest& asked() const { return asked_; }
  // What is to be sampled: one for each reply.
  const std::vector<TokenRequest>& requests() const { return requests_; }
  const std::shared_ptr<const MessageParser>& parser() const { return parser_; }
  const engine::Tokenizer& tokenizer() const { return text_.tokenizer(); }
  // The answer without replies.
  ModelReplies head() const;

  // Records the samples in the session, and returns the replies that they are. Once.
  // Throws: RequestRefused as Session::record().
  ModelReplies record(std::vector<TokenAnswer> answers);

 private:
  std::shared_ptr<Session> session_;
  ModelRequest asked_;
  ChatText& text_;
  ChatTurns::Context context_;
  std::vector<TokenRequest> requests_;
  std::shared_ptr<const MessageParser> parser_;
};

}  // namespace ringside::rl
