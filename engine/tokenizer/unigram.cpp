#include "engine/tokenizer/unigram.h"

#include <algorithm>
#include <stdexcept>

#include "engine/tokenizer/byte_piece.h"
#include "engine/tokenizer/utf8.h"

namespace ringside::engine {
namespace {

constexpr double kUnknownPenalty = 10.0;

// Of equal pieces the last one counts, as in Hugging Face's map.
Vocabulary vocabulary_of(const std::vector<std::pair<std::string, double>>& pieces) {
  Vocabulary vocabulary;
  vocabulary.reserve(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    vocabulary[pieces[i].first] = static_cast<int64_t>(i);
  }
  return vocabulary;
}

}  // namespace

Unigram::Unigram(std::vector<std::pair<std::string, double>> pieces, std::optional<int64_t> unk_id,
                 bool byte_fallback)
    : TokenModel(vocabulary_of(pieces)), unk_id_(unk_id), byte_fallback_(byte_fallback) {
  if (pieces.empty()) {
    throw std::runtime_error("model: the vocabulary is empty");
  }
  if (unk_id && (*unk_id < 0 || *unk_id >= static_cast<int64_t>(pieces.size()))) {
    throw std::runtime_error("model: unk_id " + std::to_string(*unk_id) +
                             " is not in the vocabulary of " + std::to_string(pieces.size()));
  }
  double lowest = pieces.front().second;
  for (const auto& [text, score] : pieces) {
    scores_.push_back(score);
    lowest = std::min(lowest, score);
    longest_ = std::max(longest_, text.size());
  }
  unk_score_ = lowest - kUnknownPenalty;
}

std::vector<Unigram::Best> Unigram::best_paths(std::string_view word) const {
  std::vector<Best> ends(word.size() + 1);
  for (std::size_t begin = 0; begin < word.size();) {
    const std::size_t character = utf8_char_bytes(word.substr(begin));
    if (character == 0) {
      throw std::invalid_argument("Unigram: a word is not UTF-8");
    }
    const double before = ends[begin].score;
    bool has_single = false;
    const auto offer = [&](std::size_t end, int64_t id, double score) {
      Best& best = ends[end];
      if (best.id < 0 || score > best.score) {
        best = {score, begin, id};
      }
    };
    const std::size_t last = std::min(word.size(), begin + longest_);
    for (std::size_t end = begin + character; end <= last;) {
      if (const auto id = find_id(vocabulary(), word.substr(begin, end - begin))) {
        offer(end, *id, scores_[static_cast<std::size_t>(*id)] + before);
        has_single |= end == begin + character;
      }
      const std::size_t next = end < word.size() ? utf8_char_bytes(word.substr(end)) : 1;
      end += std::max<std::size_t>(1, next);
    }
    if (!has_single) {
      if (!unk_id_) {
        throw std::invalid_argument("Unigram: '" + std::string(word.substr(begin, character)) +
                                    "' has no piece, and the model has no unk_id");
      }
      offer(begin + character, *unk_id_, unk_score_ + before);
    }
    begin += character;
  }
  return ends;
}

void Unigram::append_unknown(std::string_view text, std::vector<int64_t>& ids) const {
  if (const auto known =
          find_id(vocabulary(), text)) {  // several unknown characters may be a piece
    ids.push_back(*known);
    return;
  }
  std::vector<int64_t> bytes;
  for (const char c : text) {
    const auto id =
        byte_fallback_ ? find_id(vocabulary(), byte_piece(static_cast<uint8_t>(c))) : std::nullopt;
    if (!id) {
      ids.push_back(*unk_id_);
      return;
    }
    bytes.push_back(*id);
  }
  ids.insert(ids.end(), bytes.begin(), bytes.end());
}

void Unigram::encode_word(std::string_view word, std::vector<int64_t>& ids) const {
  const std::vector<Best> ends = best_paths(word);
  struct Part {
    std::size_t begin, end;
    int64_t id;
  };
  std::vector<Part> parts;  // from the last to the first
  for (std::size_t end = word.size(); end > 0; end = ends[end].begin) {
    const Best& best = ends[end];
    if (best.id == unk_id_ && !parts.empty() && parts.back().id == unk_id_) {
      parts.back().begin = best.begin;
    } else {
      parts.push_back({best.begin, end, best.id});
    }
  }
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->id == unk_id_) {
      append_unknown(word.substr(part->begin, part->end - part->begin), ids);
    } else {
      ids.push_back(part->id);
    }
  }
}

}  // namespace ringside::engine
