// Pairs of documents in data files, read and tokenized when they are asked for, as those of
// sft_file.h. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/config/config.h"
#include "rl/data/chat_format.h"
#include "rl/data/preference_examples.h"
#include "rl/data/record_set.h"

namespace ringside::rl {

// Thread safety: none.
class PreferenceFile {
 public:
  using Example = TokenizedPair;

  // eos: the model's end-of-sequence ids. The tokenizer must outlive the object.
  // Throws: as RecordSet.
  PreferenceFile(const std::string& files, const Config& config, const engine::Tokenizer& tokenizer,
                 std::vector<int64_t> eos);

  const RecordSet& records() const { return records_; }
  int64_t size() const { return records_.size(); }

  struct Read {
    // Empty: dropped, as data.on_overlong says, or nothing is left to compare.
    std::optional<TokenizedPair> example;
    bool overlong = false;  // one of the documents is longer than sft_limit()
  };
  // Pair i.
  // Throws: std::runtime_error "FILE:LINE: ..." when it cannot be learned from, or one of its
  // documents is too long under data.on_overlong error.
  Read read(int64_t i);

 private:
  TokenizedPair tokenize(int64_t i);

  RecordSet records_;
  ChatFormat chat_;
  DataConfig data_;
  Task task_;
  SftLimit limit_;
  const engine::Tokenizer& tokenizer_;
  std::vector<int64_t> eos_;
};

}  // namespace ringside::rl
