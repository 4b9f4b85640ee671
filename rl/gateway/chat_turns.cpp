#include "rl/gateway/chat_turns.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "rl/chat/markers.h"
#include "rl/data/prompt_tokens.h"
#include "rl/gateway/chat_messages.h"

namespace ringside::rl {
namespace {

using nlohmann::ordered_json;

// Whether the request's messages are those of the turn, its reply included, and then others.
bool begins_with(const Conversation& asked, const Conversation& turn) {
  return asked.tools == turn.tools && asked.messages.size() > turn.messages.size() &&
         std::equal(turn.messages.begin(), turn.messages.end(), asked.messages.begin(),
                    same_message);
}

// Whether the template writes a conversation's last message behind the prompt that it answered, and
// with its reasoning.
bool shows_reply(const std::string& text, const std::string& prompt,
                 const Conversation& conversation) {
  if (!text.starts_with(prompt)) {
    return false;
  }
  const std::string reasoning = conversation.messages.back().value("reasoning_content", "");
  return text.find(python_strip(reasoning), prompt.size()) != std::string::npos;
}

// Where what ends the reply begins in the text through it: the marker with which the model ended
// it, otherwise what the template writes behind any reply. The marker is the closing's first one; a
// reply that does not end with the closing (GPT-OSS writes another one behind calls) ends with its
// last one. nullopt if the text has neither.
std::optional<std::size_t> place_of_end(const std::string& through, std::size_t begin,
                                        const std::string& marker,
                                        const std::optional<std::string>& closing) {
  const bool closes =
      closing && through.size() >= begin + closing->size() && through.ends_with(*closing);
  if (!marker.empty()) {
    const std::size_t in_closing = closes ? closing->find(marker) : std::string::npos;
    const std::size_t last = through.rfind(marker);
    if (in_closing != std::string::npos) {
      return through.size() - closing->size() + in_closing;
    }
    if (last != std::string::npos && last >= begin) {
      return last;
    }
  }
  return closes ? std::optional(through.size() - closing->size()) : std::nullopt;
}

}  // namespace

ChatText::ChatText(ChatFormat format, const engine::Tokenizer& tokenizer)
    : format_(std::move(format)), tokenizer_(tokenizer) {}

std::string ChatText::prompt(const Conversation& conversation) {
  const std::lock_guard lock(mutex_);
  return format_.prompt(conversation);
}

std::string ChatText::whole(const Conversation& conversation) {
  const std::lock_guard lock(mutex_);
  return format_.text(conversation);
}

std::optional<std::string> ChatText::closing(const ordered_json& tools) {
  const std::lock_guard lock(mutex_);
  if (!closing_ || closing_->tools != tools) {
    closing_ = {tools, format_.closing(tools)};
  }
  return closing_->text;
}

std::vector<int64_t> ChatText::encode(const std::string& text) const {
  return text_prompt_tokens(text, format_.add_special_tokens(), tokenizer_).ids;
}

ChatTurns::Context ChatTurns::context(ChatText& text, const Conversation& asked) const {
  std::vector<const Turn*> longest_first;
  for (auto turn = turns_.rbegin(); turn != turns_.rend(); ++turn) {  // the newest of equal ones
    if (begins_with(asked, turn->conversation)) {
      longest_first.push_back(&*turn);
    }
  }
  std::stable_sort(longest_first.begin(), longest_first.end(), [](const Turn* a, const Turn* b) {
    return a->conversation.messages.size() > b->conversation.messages.size();
  });
  Context context{.conversation = asked};
  if (!longest_first.empty()) {  // its messages have their reasoning
    const ordered_json& recorded = longest_first.front()->conversation.messages;
    std::copy(recorded.begin(), recorded.end(), context.conversation.messages.begin());
  }
  context.prompt = text.prompt(context.conversation);
  for (const Turn* turn : longest_first) {
    if (auto ids = ids_after(text, *turn, context.prompt)) {
      context.end = turn->end;
      context.ids = std::move(*ids);
      return context;
    }
  }
  context.ids = text.encode(context.prompt);
  return context;
}

// The ids that follow a turn's in this prompt; nullopt if the turn is rendered in another way.
std::optional<std::vector<int64_t>> ChatTurns::ids_after(ChatText& text, const Turn& turn,
                                                         const std::string& prompt) const {
  std::string through = text.whole(turn.conversation);
  if (!shows_reply(through, turn.prompt, turn.conversation)) {
    return std::nullopt;
  }
  const std::string marker =
      turn.stop ? text.tokenizer().decode({&*turn.stop, 1}, /*skip_special=*/false) : "";
  const auto said =
      place_of_end(through, turn.prompt.size(), marker, text.closing(turn.conversation.tools));
  if (!said) {
    return std::nullopt;
  }
  // What follows the marker may be written at the end of a conversation alone (Phi 3).
  if (!marker.empty() && through.compare(*said, marker.size(), marker) == 0) {
    through.resize(*said + marker.size());
  }
  if (!prompt.starts_with(through)) {
    return std::nullopt;
  }
  std::vector<int64_t> ids = text.tokenizer().encode(prompt.substr(*said));
  if (turn.stop && !ids.empty() && ids.front() == *turn.stop) {
    ids.erase(ids.begin());  // the reply ends with it
  }
  return ids;
}

void ChatTurns::add(Context asked, ordered_json reply, int64_t end, std::optional<int64_t> stop) {
  asked.conversation.messages.push_back(std::move(reply));
  turns_.push_back({std::move(asked.conversation), std::move(asked.prompt), end, stop});
}

}  // namespace ringside::rl
