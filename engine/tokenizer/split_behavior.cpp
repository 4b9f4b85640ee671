#include "engine/tokenizer/split_behavior.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

namespace ringside::engine {
namespace {

constexpr std::array<std::pair<const char*, SplitBehavior>, 5> kNames = {
    {{"Removed", SplitBehavior::kRemoved},
     {"Isolated", SplitBehavior::kIsolated},
     {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
     {"MergedWithNext", SplitBehavior::kMergedWithNext},
     {"Contiguous", SplitBehavior::kContiguous}}};

// Whether `piece` joins the word before it, which begins with `last` and was read just before.
bool joins(SplitBehavior behavior, const Piece& last, const Piece& piece) {
  switch (behavior) {
    case SplitBehavior::kContiguous:
      return piece.is_match == last.is_match;
    case SplitBehavior::kMergedWithPrevious:
    case SplitBehavior::kMergedWithNext:  // read from the end
      return piece.is_match && !last.is_match;
    default:
      return false;
  }
}

}  // namespace

SplitBehavior split_behavior(const std::string& name, const std::string& component) {
  std::string expected;
  for (const auto& [known, behavior] : kNames) {
    if (name == known) {
      return behavior;
    }
    expected += (expected.empty() ? "" : ", ") + std::string(known);
  }
  throw std::runtime_error(component + ": behavior is '" + name + "', expected one of " + expected);
}

std::vector<Piece> words_of(std::vector<Piece> pieces, SplitBehavior behavior, bool invert) {
  for (Piece& piece : pieces) {
    piece.is_match ^= invert;
  }
  if (behavior == SplitBehavior::kRemoved) {
    std::erase_if(pieces, [](const Piece& piece) { return piece.is_match; });
  }
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) {
    std::ranges::reverse(pieces);
  }
  std::vector<Piece> words;
  Piece last{};
  for (const Piece& piece : pieces) {
    if (!words.empty() && joins(behavior, last, piece)) {
      words.back().begin = std::min(words.back().begin, piece.begin);
      words.back().end = std::max(words.back().end, piece.end);
    } else {
      words.push_back(piece);
    }
    last = piece;
  }
  if (backwards) {
    std::ranges::reverse(words);
  }
  std::erase_if(words, [](const Piece& word) { return word.begin == word.end; });
  return words;
}

}  // namespace ringside::engine
