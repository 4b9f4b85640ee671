// An answer as the events of a stream, while it is sampled. Torch-free.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/tokenizer/text_stream.h"
#include "rl/chat/message_parser.h"
#include "rl/gateway/event_writer.h"
#include "rl/gateway/pending_answer.h"
#include "rl/gateway/session_desk.h"

namespace ringside::rl {

// One reply as its tokens are drawn.
// Thread safety: none.
class GrowingReply {
 public:
  // index: of the reply. `pending` must outlive this.
  GrowingReply(const PendingAnswer& pending, std::size_t index);

  // Takes the next token.
  void add(int64_t id, float logprob);
  // What is certain of the reply since the last call: nothing of a marker, of a text that may end
  // it, or of half a character. Tokens come with the next text that is certain; until then the part
  // is empty.
  ReplyPart take();
  // The rest, by the whole reply. Throws: std::logic_error when that is not how the reply began.
  ReplyPart finish(const ModelReply& whole);

 private:
  void feed(std::string_view text);
  void append(ParsedMessage part);
  void add_token(int64_t id, float logprob);
  std::size_t may_end_bytes() const;

  const PendingAnswer& pending_;
  uint64_t seed_;
  engine::TextStream text_stream_;
  std::unique_ptr<MessageStream> message_;
  std::string text_;     // certain so far
  std::size_t fed_ = 0;  // bytes of it that the message has
  std::size_t calls_ = 0;
  bool is_stopped_ = false;  // by one of the texts that the request names
  std::vector<int64_t> ids_;
  ReplyPart untaken_;
};

// Thread safety: one thread.
class ReplyStream {
 public:
  // Hands the requests to the desk, which must outlive this. Throws: as SessionDesk::submit().
  ReplyStream(PendingAnswer pending, SessionDesk& desk, std::unique_ptr<EventWriter> writer);
  // The samples are recorded also when nobody has read the events.
  // Blocks: until they are sampled.
  ~ReplyStream();

  // The next events; "" at the end. The last ones come after the record of the samples, so that a
  // request which follows them continues it. What cannot be answered becomes an event, too.
  // Blocks: until there are some.
  std::string next();

  // Tokens of an answer that wait for a slow reader. It gets the others with the last events.
  static constexpr std::size_t kMostUnread = 16384;

 private:
  ModelReplies record();
  std::string news();
  std::string finish();

  PendingAnswer pending_;
  std::unique_ptr<EventWriter> writer_;
  std::vector<GrowingReply> replies_;
  std::shared_ptr<TokenFeed> feed_;
  SessionDesk::Answers answers_;
  bool is_begun_ = false, is_over_ = false, is_recorded_ = false;
};

}  // namespace ringside::rl
