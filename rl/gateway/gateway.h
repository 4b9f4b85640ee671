// Answers of the gateway: from a request of a session to its replies. Torch-free.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "rl/gateway/chat_turns.h"
#include "rl/gateway/event_writer.h"
#include "rl/gateway/model_request.h"
#include "rl/gateway/pending_answer.h"
#include "rl/gateway/reply_stream.h"
#include "rl/gateway/session.h"
#include "rl/gateway/session_desk.h"

namespace ringside::rl {

// Thread safety: any threads.
class Gateway {
 public:
  // parser: as reply_parser(). `text` and `desk` must outlive this.
  Gateway(SessionDesk& desk, ChatText& text, std::string parser);

  // What a request samples from. It is submitted to the desk, and records its answers.
  // Throws: as PendingAnswer.
  PendingAnswer begin(const std::shared_ptr<Session>& session, ModelRequest asked);

  // Samples the replies to a request, and records them in the session.
  // Blocks: until they are sampled.
  // Throws: RequestRefused.
  ModelReplies answer(const std::shared_ptr<Session>& session, ModelRequest asked);

  // The same as events of a stream, while they are sampled. Throws: RequestRefused.
  std::unique_ptr<ReplyStream> stream(const std::shared_ptr<Session>& session, ModelRequest asked,
                                      std::unique_ptr<EventWriter> writer);

  // What a harness gets for a session that it claims.
  static nlohmann::ordered_json claimed(const Session& session);
  // Ends the session as the body of a harness says: {"reward": number} or {"rewards": {name:
  // number}}, with "turn_rewards" if it has some, or {"failure": why}.
  // Throws: RequestRefused (400, 409) for another body, or a session that has ended.
  static void end(Session& session, const nlohmann::ordered_json& body);

  SessionDesk& desk() const { return desk_; }

 private:
  SessionDesk& desk_;
  ChatText& text_;
  const std::string parser_;
};

}  // namespace ringside::rl
