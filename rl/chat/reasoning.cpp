#include "rl/chat/reasoning.h"

#include <algorithm>
#include <utility>

#include "rl/chat/markers.h"

namespace ringside::rl {

ReasoningStart reasoning_start(std::string_view prompt, const ReasoningTags& tags) {
  prompt.remove_suffix(space_bytes_at_end(prompt));
  if (prompt.ends_with(tags.open)) {
    return ReasoningStart::kInPrompt;
  }
  return prompt.ends_with(tags.close) ? ReasoningStart::kNone : ReasoningStart::kByModel;
}

ReasoningSplitter::ReasoningSplitter(const ReasoningTags& tags, ReasoningStart start)
    : tags_(tags),
      in_prompt_(start == ReasoningStart::kInPrompt),
      state_(State::kFront),
      has_head_(!tags.head.empty()) {
  if (start == ReasoningStart::kNone) {
    state_ = State::kContent;
  } else if (tags.anywhere && !in_prompt_) {
    state_ = State::kBefore;
  }
}

ParsedMessage ReasoningSplitter::read(std::string_view piece) {
  text_ += piece;
  ParsedMessage out;
  while (step(out)) {
  }
  tidy(out.reasoning, /*at_end=*/false);
  return out;
}

ParsedMessage ReasoningSplitter::end() {
  ParsedMessage out;
  const bool reasoning = state_ == State::kReasoning || (state_ == State::kFront && in_prompt_);
  (reasoning ? out.reasoning : out.content) = std::exchange(text_, {});
  tidy(out.reasoning, /*at_end=*/true);
  return out;
}

void ReasoningSplitter::tidy(std::string& reasoning, bool at_end) {
  if (!has_head_ && !tags_.strip_end) {
    return;
  }
  reasoning.insert(0, std::exchange(held_, {}));
  if (has_head_ && !reasoning.empty()) {
    if (!at_end && reasoning.size() < tags_.head.size() && tags_.head.starts_with(reasoning)) {
      held_ = std::exchange(reasoning, {});
      return;
    }
    has_head_ = false;
    if (reasoning.starts_with(tags_.head)) {
      reasoning.erase(0, tags_.head.size());
    }
  }
  if (tags_.strip_end) {
    const std::size_t words = reasoning.size() - space_bytes_at_end(reasoning);
    held_ = at_end ? "" : reasoning.substr(words);
    reasoning.resize(words);
  }
}

bool ReasoningSplitter::step(ParsedMessage& out) {
  switch (state_) {
    case State::kFront:
      return step_front(out);
    case State::kBefore:
      return step_before(out);
    case State::kReasoning:
      return step_reasoning(out);
    case State::kAfter:
      return step_after(out);
    case State::kContent:
      out.content += std::exchange(text_, {});
  }
  return false;
}

bool ReasoningSplitter::step_front(ParsedMessage& out) {
  front_space_ += space_bytes_at_front(std::string_view(text_).substr(front_space_));
  const std::string_view rest = std::string_view(text_).substr(front_space_);
  if (rest.starts_with(tags_.open)) {
    out.reasoning += tags_.keep_space ? text_.substr(0, front_space_) : "";
    text_.erase(0, front_space_ + tags_.open.size());
    state_ = State::kReasoning;
    return true;
  }
  if (tags_.open.starts_with(rest)) {
    return false;
  }
  state_ = in_prompt_ ? State::kReasoning : State::kContent;
  return true;
}

bool ReasoningSplitter::step_before(ParsedMessage& out) {
  std::string_view marker;
  if (closed_before_) {
    marker = take_to_marker(out.content, {tags_.open});
  } else {
    marker = take_to_marker(out.content, {tags_.open, tags_.close});
  }
  if (marker == tags_.open) {
    state_ = State::kReasoning;
  } else if (marker == tags_.close) {
    closed_before_ = true;
  }
  return !marker.empty();
}

bool ReasoningSplitter::step_reasoning(ParsedMessage& out) {
  std::string_view marker;
  if (tags_.call.empty()) {
    marker = take_to_marker(out.reasoning, {tags_.open, tags_.close});
  } else {
    marker = take_to_marker(out.reasoning, {tags_.open, tags_.close, tags_.call});
  }
  if (marker == tags_.close) {
    state_ = tags_.close_again ? State::kContent : State::kAfter;
  } else if (!marker.empty() && marker == tags_.call) {
    out.content += marker;
    state_ = tags_.close_again ? State::kContent : State::kAfter;
  }
  return !marker.empty();
}

bool ReasoningSplitter::step_after(ParsedMessage& out) {
  if (!tags_.anywhere) {
    return !take_to_marker(out.content, {tags_.close}).empty();
  }
  const std::string_view marker = take_to_marker(out.content, {tags_.open, tags_.close});
  if (marker == tags_.open) {
    state_ = State::kReasoning;
  }
  return !marker.empty();
}

std::string_view ReasoningSplitter::take_to_marker(
    std::string& out, std::initializer_list<std::string_view> markers) {
  const MarkerPlace place = first_marker(text_, markers);
  const std::size_t bytes = std::min(place.at, text_.size() - begun_marker_bytes(text_, markers));
  out += std::string_view(text_).substr(0, bytes);
  text_.erase(0, bytes + place.marker.size());
  return place.marker;
}

}  // namespace ringside::rl
