#include "engine/tokenizer/bpe.h"

#include <functional>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "engine/tokenizer/byte_piece.h"
#include "engine/tokenizer/utf8.h"

namespace ringside::engine {
namespace {

int64_t require_id(const Vocabulary& vocabulary, const std::string& token, const char* role) {
  if (const auto id = find_id(vocabulary, token)) {
    return *id;
  }
  throw std::runtime_error("model: " + std::string(role) + " '" + token +
                           "' is not in the vocabulary");
}

}  // namespace

std::size_t Bpe::PairHash::operator()(const std::pair<int64_t, int64_t>& pair) const {
  // Ids are small; multiplying by a large odd number spreads the first id over the high bits.
  return std::hash<uint64_t>{}(static_cast<uint64_t>(pair.first) * 0x9E3779B97F4A7C15u ^
                               static_cast<uint64_t>(pair.second));
}

Bpe::Bpe(Vocabulary tokens, const std::vector<std::pair<std::string, std::string>>& merges,
         BpeOptions options)
    : TokenModel(std::move(tokens)), options_(std::move(options)) {
  if (options_.unk_token) {
    unk_id_ = require_id(vocabulary(), *options_.unk_token, "unk_token");
  }
  merges_.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const std::pair pair(require_id(vocabulary(), left, "token of a merge"),
                         require_id(vocabulary(), right, "token of a merge"));
    merges_[pair] = {static_cast<int64_t>(rank),
                     require_id(vocabulary(), left + right, "result of a merge")};
  }
}

void Bpe::encode_word(std::string_view word, std::vector<int64_t>& ids) const {
  if (options_.ignore_merges) {
    if (const auto id = find_id(vocabulary(), word)) {
      ids.push_back(*id);
      return;
    }
  }
  merge(characters(word), ids);
}

std::vector<int64_t> Bpe::byte_tokens(std::string_view text) const {
  std::vector<int64_t> ids;
  for (const char c : text) {
    const auto id = find_id(vocabulary(), byte_piece(static_cast<uint8_t>(c)));
    if (!id) {
      return {};
    }
    ids.push_back(*id);
  }
  return ids;
}

std::vector<int64_t> Bpe::characters(std::string_view word) const {
  std::vector<int64_t> symbols;
  // An unknown character waits for the next one that has no bytes either: so Hugging Face's order,
  // where bytes overtake it.
  bool unknown_waits = false;
  for (; !word.empty(); word.remove_prefix(utf8_char_bytes(word))) {
    const std::size_t bytes = utf8_char_bytes(word);
    if (bytes == 0) {
      throw std::invalid_argument("BPE: a word is not UTF-8");
    }
    const auto id = find_id(vocabulary(), word.substr(0, bytes));
    if (!id && options_.byte_fallback) {
      if (const auto fallback = byte_tokens(word.substr(0, bytes)); !fallback.empty()) {
        symbols.insert(symbols.end(), fallback.begin(), fallback.end());
        continue;
      }
    }
    if (unknown_waits && (id || !options_.fuse_unk)) {
      symbols.push_back(*unk_id_);
    }
    unknown_waits = !id && unk_id_;
    if (id) {
      symbols.push_back(*id);
    }
  }
  if (unknown_waits) {
    symbols.push_back(*unk_id_);
  }
  return symbols;
}

// Merges with a doubly linked list of symbols and a heap of candidate merges. A candidate whose
// symbols have changed since it was pushed is skipped.
void Bpe::merge(std::vector<int64_t> symbols, std::vector<int64_t>& ids) const {
  const auto n = static_cast<int64_t>(symbols.size());
  constexpr int64_t kGone = -1;
  std::vector<int64_t> next(symbols.size()), previous(symbols.size());
  using Candidate = std::tuple<int64_t, int64_t, int64_t>;  // rank, position, merged id
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto merge_at = [&](int64_t i) { return merges_.find({symbols[i], symbols[next[i]]}); };
  const auto push = [&](int64_t i) {
    if (i < 0 || next[i] >= n) {
      return;
    }
    if (const auto found = merge_at(i); found != merges_.end()) {
      heap.emplace(found->second.rank, i, found->second.id);
    }
  };
  for (int64_t i = 0; i < n; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
  }
  for (int64_t i = 0; i < n; ++i) {
    push(i);
  }
  while (!heap.empty()) {
    const auto [rank, i, merged] = heap.top();
    heap.pop();
    if (symbols[i] == kGone || next[i] >= n) {
      continue;
    }
    const auto found = merge_at(i);
    if (found == merges_.end() || found->second.id != merged) {
      continue;
    }
    symbols[i] = merged;
    symbols[next[i]] = kGone;
    next[i] = next[next[i]];
    if (next[i] < n) {
      previous[next[i]] = i;
    }
    push(previous[i]);
    push(i);
  }
  for (const int64_t id : symbols) {
    if (id != kGone) {
      ids.push_back(id);
    }
  }
}

}  // namespace ringside::engine
