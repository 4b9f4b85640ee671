// An answer as the events of a stream, in the dialect of a route. Torch-free.
#pragma once

#include <cstddef>
#include <string>

#include "rl/gateway/model_request.h"

namespace ringside::rl {

// Of one answer; the functions return text for the body, and are called in this order.
// Thread safety: none.
class EventWriter {
 public:
  virtual ~EventWriter() = default;

  // Before anything is sampled. answer: without replies.
  virtual std::string begin(const ModelReplies& answer) = 0;
  // What is new of a reply, any number of times. All of its parts, appended, are the reply.
  virtual std::string part(std::size_t choice, const ReplyPart& part) = 0;
  // The last events.
  virtual std::string end(const ModelReplies& answer) = 0;

  // At any place instead of what is missing: nothing follows.
  virtual std::string error(int status, const std::string& why) = 0;
};

}  // namespace ringside::rl
