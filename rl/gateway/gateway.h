// Answers of the gateway: from a request of a session to its replies. Torch-free.
#pragma once

#include <future>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "rl/gateway/chat_turns.h"
#include "rl/gateway/model_request.h"
#include "rl/gateway/reply_reader.h"
#include "rl/gateway/session.h"
#include "rl/gateway/session_desk.h"

namespace ringside::rl {

// A request whose tokens are being sampled.
struct PendingReplies {
  ModelRequest asked;
  ChatTurns::Context context;
  std::vector<TokenRequest> requests;
  ReplyParser parser;
  std::vector<std::future<TokenAnswer>> answers;

  // Gateway::finish() would not block. Blocks: never.
  bool are_sampled() const;
};

// Thread safety: any threads.
class Gateway {
 public:
  // parser: as reply_parser(). `text` and `desk` must outlive this.
  Gateway(SessionDesk& desk, ChatText& text, std::string parser);

  // Samples the replies to a request, and records them in the session.
  // Blocks: until they are sampled.
  // Throws: RequestRefused.
  ModelReplies answer(Session& session, const ModelRequest& asked);
  // The two halves of answer(). begin() blocks only as ChatText; finish() until all are sampled.
  // Throws: RequestRefused.
  PendingReplies begin(Session& session, const ModelRequest& asked);
  ModelReplies finish(Session& session, PendingReplies pending);

  // What a harness gets for a session that it claims.
  static nlohmann::ordered_json claimed(const Session& session);
  // Ends the session as the body of a harness says: {"reward": number} or {"rewards": {name:
  // number}}, with "turn_rewards" if it has some, or {"failure": why}.
  // Throws: RequestRefused (400, 409) for another body, or a session that has ended.
  static void end(Session& session, const nlohmann::ordered_json& body);

  SessionDesk& desk() const { return desk_; }

 private:
  ChatTurns::Context context_of(const Session& session, const ModelRequest& asked);

  SessionDesk& desk_;
  ChatText& text_;
  const std::string parser_;
};

}  // namespace ringside::rl
