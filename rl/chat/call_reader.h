// Tool calls in the content of a completion, as it grows; and the stream that the formats with
// reasoning tags share.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rl/chat/formats.h"
#include "rl/chat/message_parser.h"
#include "rl/chat/reasoning.h"

namespace ringside::rl {

// Content without reasoning to content and calls.
// Thread safety: none.
class CallReader {
 public:
  virtual ~CallReader() = default;
  // The content and calls of the next piece that are certain.
  virtual ParsedMessage read(std::string_view piece) = 0;
  // The rest of them, at the end of the text.
  virtual ParsedMessage end() = 0;
  // Whether the text read so far certainly has calls, if only broken ones that were dropped.
  virtual bool has_calls() const = 0;
};

// A format whose calls follow the content: all from the first marker on are calls, or, if they
// cannot be read, content.
class TailReader : public CallReader {
 public:
  // The calls of the text from the marker on; nullopt when it is content.
  using ReadTail = std::function<std::optional<std::vector<ToolCall>>(std::string_view)>;

  // marker: outlives the reader.
  TailReader(std::string_view marker, ReadTail read_tail);

  ParsedMessage read(std::string_view piece) override;
  ParsedMessage end() override;
  bool has_calls() const override { return has_calls_; }

 private:
  std::string_view marker_;
  ReadTail read_tail_;
  bool in_tail_ = false;
  bool has_calls_ = false;
  std::string text_;  // from the marker on, or what may be its beginning
};

// A format whose calls stand in blocks between two markers, after the content. White space before
// them is dropped, and so is text between and behind them. Without a call all is content.
class BlockReader : public CallReader {
 public:
  // The calls of a block. closed: its closing marker came; otherwise the text ended.
  using ReadBlock = std::function<std::vector<ToolCall>(std::string_view block, bool closed)>;
  // Whether a block ends with this text, which a closing marker follows.
  using IsWhole = std::function<bool(std::string_view block)>;

  // open, close: outlive the reader.
  BlockReader(
      std::string_view open, std::string_view close, ReadBlock read_block,
      IsWhole is_whole = [](std::string_view) { return true; });

  ParsedMessage read(std::string_view piece) override;
  ParsedMessage end() override;
  bool has_calls() const override { return has_calls_; }

 private:
  bool step_content(ParsedMessage& out);
  bool step_block(ParsedMessage& out);
  void add_content(std::string_view text, ParsedMessage& out);
  void end_block(std::string_view block, bool closed, ParsedMessage& out);

  std::string_view open_, close_;
  ReadBlock read_block_;
  IsWhole is_whole_;
  bool is_marked_ = false;  // an opening marker came
  bool in_block_ = false;
  bool has_calls_ = false;
  std::size_t searched_ = 0;  // bytes of a block without an end
  std::string text_;          // a block, or what may be the beginning of a marker
  std::string held_;          // content if no call follows
};

// Without calls: all is content.
class NoCalls : public CallReader {
 public:
  ParsedMessage read(std::string_view piece) override { return {"", std::string(piece), {}}; }
  ParsedMessage end() override { return {}; }
  bool has_calls() const override { return false; }
};

// Reasoning, then content, then calls. Content that is white space alone is dropped beside calls.
class StagedStream : public MessageStream {
 public:
  // calls: at the first byte of its text.
  StagedStream(const ReasoningTags& tags, ReasoningStart start, std::unique_ptr<CallReader> calls);

 private:
  ParsedMessage read(std::string_view piece) override;
  ParsedMessage end() override;
  // Holds white space at the front of the content back.
  ParsedMessage without_front_space(ParsedMessage part);

  ReasoningSplitter reasoning_;
  std::unique_ptr<CallReader> calls_;
  std::string front_space_;
  bool has_content_ = false;
};

// A parser of such a format.
class StagedParser : public MessageParser {
 public:
  using MakeReader = std::function<std::unique_ptr<CallReader>()>;

  // make_reader: of the readers of calls; called by all threads that make streams.
  StagedParser(const ReasoningTags& tags, const ParserOptions& options, MakeReader make_reader)
      : tags_(tags),
        start_(options.reasoning),
        read_calls_(options.read_calls),
        make_reader_(std::move(make_reader)) {}

  std::unique_ptr<MessageStream> stream() const override {
    return std::make_unique<StagedStream>(
        tags_, start_, read_calls_ ? make_reader_() : std::make_unique<NoCalls>());
  }

 private:
  ReasoningTags tags_;
  ReasoningStart start_;
  bool read_calls_;
  MakeReader make_reader_;
};

}  // namespace ringside::rl
