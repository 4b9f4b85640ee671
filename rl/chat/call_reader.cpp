#include "rl/chat/call_reader.h"

#include <algorithm>
#include <utility>

#include "rl/chat/markers.h"

namespace ringside::rl {

TailReader::TailReader(std::string_view marker, ReadTail read_tail)
    : marker_(marker), read_tail_(std::move(read_tail)) {}

ParsedMessage TailReader::read(std::string_view piece) {
  text_ += piece;
  ParsedMessage out;
  if (in_tail_) {
    return out;
  }
  const std::size_t at = text_.find(marker_);
  in_tail_ = at != std::string::npos;
  const std::size_t content = in_tail_ ? at : text_.size() - begun_marker_bytes(text_, {marker_});
  out.content = text_.substr(0, content);
  text_.erase(0, content);
  return out;
}

ParsedMessage TailReader::end() {
  ParsedMessage out;
  auto calls = in_tail_ ? read_tail_(text_) : std::nullopt;
  if (calls) {
    has_calls_ = true;
    out.tool_calls = *std::move(calls);
  } else {
    out.content = std::move(text_);
  }
  return out;
}

StagedStream::StagedStream(const ReasoningTags& tags, ReasoningStart start,
                           std::unique_ptr<CallReader> calls)
    : reasoning_(tags, start), calls_(std::move(calls)) {}

ParsedMessage StagedStream::read(std::string_view piece) {
  ParsedMessage part = reasoning_.read(piece);
  part.append(calls_->read(std::exchange(part.content, {})));
  return without_front_space(std::move(part));
}

ParsedMessage StagedStream::end() {
  ParsedMessage part = reasoning_.end();
  part.append(calls_->read(std::exchange(part.content, {})));
  part.append(calls_->end());
  part = without_front_space(std::move(part));
  if (!has_content_ && !calls_->has_calls()) {
    part.content = std::move(front_space_);
  }
  return part;
}

ParsedMessage StagedStream::without_front_space(ParsedMessage part) {
  if (has_content_) {
    return part;
  }
  has_content_ = space_bytes_at_front(part.content) < part.content.size();
  front_space_ += std::exchange(part.content, {});
  if (has_content_) {
    part.content = std::exchange(front_space_, {});
  }
  return part;
}

}  // namespace ringside::rl
