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

BlockReader::BlockReader(std::string_view open, std::string_view close, ReadBlock read_block,
                         IsWhole is_whole)
    : open_(open),
      close_(close),
      read_block_(std::move(read_block)),
      is_whole_(std::move(is_whole)) {}

ParsedMessage BlockReader::read(std::string_view piece) {
  text_ += piece;
  ParsedMessage out;
  while (in_block_ ? step_block(out) : step_content(out)) {
  }
  return out;
}

bool BlockReader::step_content(ParsedMessage& out) {
  const std::size_t at = text_.find(open_);
  in_block_ = at != std::string::npos;
  const std::size_t bytes = in_block_ ? at : text_.size() - begun_marker_bytes(text_, {open_});
  add_content(std::string_view(text_).substr(0, bytes), out);
  text_.erase(0, bytes + (in_block_ ? open_.size() : 0));
  is_marked_ = is_marked_ || in_block_;
  searched_ = 0;
  return in_block_;
}

bool BlockReader::step_block(ParsedMessage& out) {
  const std::size_t end = text_.find(close_, searched_);
  if (end == std::string::npos) {
    searched_ = std::max(searched_, text_.size() - std::min(text_.size(), close_.size() - 1));
    return false;
  }
  const std::string_view block = std::string_view(text_).substr(0, end);
  searched_ = end + close_.size();
  if (is_whole_(block)) {
    end_block(block, /*closed=*/true, out);
    text_.erase(0, searched_);
    in_block_ = false;
  }
  return true;
}

void BlockReader::add_content(std::string_view text, ParsedMessage& out) {
  if (has_calls_) {
    return;
  }
  const std::size_t content = is_marked_ ? 0 : text.size() - space_bytes_at_end(text);
  if (content > 0) {
    out.content += std::exchange(held_, {});
    out.content += text.substr(0, content);
  }
  held_ += text.substr(content);
}

void BlockReader::end_block(std::string_view block, bool closed, ParsedMessage& out) {
  for (ToolCall& call : read_block_(block, closed)) {
    has_calls_ = true;
    out.tool_calls.push_back(std::move(call));
  }
  held_ += has_calls_ ? "" : std::string(open_) + std::string(block);
  held_ += has_calls_ || !closed ? "" : close_;
}

ParsedMessage BlockReader::end() {
  ParsedMessage out;
  if (in_block_) {
    end_block(text_, /*closed=*/false, out);
  } else {
    add_content(text_, out);
  }
  text_.clear();
  out.content += has_calls_ ? "" : std::exchange(held_, {});
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
