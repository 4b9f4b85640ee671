// Behaviours of a pre-tokenizer that splits: what becomes of the matches of its pattern.
// Source: tokenizers 0.22, normalizer.rs (SplitDelimiterBehavior).
#pragma once

#include <string>
#include <vector>

#include "engine/tokenizer/regex.h"

namespace ringside::engine {

enum class SplitBehavior {
  kRemoved,             // matches are left out
  kIsolated,            // every match is a word
  kMergedWithPrevious,  // a match ends the word before it; of adjacent ones the first alone
  kMergedWithNext,      // a match begins the word after it; of adjacent ones the last alone
  kContiguous,          // adjacent matches are one word
};

// The behaviour by its name in tokenizer.json. `component`: for the message.
// Throws: std::runtime_error that lists the names.
SplitBehavior split_behavior(const std::string& name, const std::string& component);

// The words of a text that are left of Regex::split()'s pieces, in order and not empty. invert:
// matches are what is between the pattern's.
std::vector<Piece> words_of(std::vector<Piece> pieces, SplitBehavior behavior, bool invert);

}  // namespace ringside::engine
