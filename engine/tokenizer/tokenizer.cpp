#include "engine/tokenizer/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "engine/json/json_text.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/pipeline.h"
#include "engine/tokenizer/unigram.h"
#include "engine/tokenizer/utf8.h"
#include "engine/tokenizer/word_level.h"

namespace ringside::engine {
namespace {

using Json = nlohmann::json;

Vocabulary read_vocabulary(const Json& json) {
  Vocabulary vocabulary;
  vocabulary.reserve(json.size());
  for (const auto& [token, id] : json.items()) {
    vocabulary.emplace(token, id.get<int64_t>());
  }
  return vocabulary;
}

// Reads "left right", the form before tokenizers 0.20, and ["left", "right"], the form since.
std::vector<std::pair<std::string, std::string>> read_merges(const Json& json) {
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(json.size());
  for (const Json& merge : json) {
    if (merge.is_array()) {
      merges.emplace_back(merge.at(0).get<std::string>(), merge.at(1).get<std::string>());
      continue;
    }
    const auto text = merge.get<std::string>();
    const std::size_t space = text.find(' ');
    if (space == std::string::npos) {
      throw std::runtime_error("model: merge '" + text + "' is not two tokens");
    }
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return merges;
}

// Refuses an option unless it is absent, null, or the one value that has no effect.
void refuse_option(const Json& json, const char* component, const char* key, const Json& harmless) {
  const auto found = json.find(key);
  if (found != json.end() && !found->is_null() && *found != harmless) {
    throw std::runtime_error(std::string(component) + ": " + key + " = " + found->dump() +
                             " is not supported");
  }
}

std::unique_ptr<const TokenModel> read_unigram(const Json& json) {
  std::vector<std::pair<std::string, double>> pieces;
  for (const Json& piece : json.at("vocab")) {
    if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number()) {
      throw std::runtime_error("model.vocab: a Unigram's entry is " + piece.dump() +
                               ", expected [token, score]");
    }
    pieces.emplace_back(piece.at(0).get<std::string>(), piece.at(1).get<double>());
  }
  std::optional<int64_t> unk_id;
  if (json.contains("unk_id") && !json.at("unk_id").is_null()) {
    unk_id = json.at("unk_id").get<int64_t>();
  }
  return std::make_unique<Unigram>(std::move(pieces), unk_id, json.value("byte_fallback", false));
}

// Old files have no type of a BPE or a Unigram.
std::string model_type(const Json& json) {
  const bool has_pieces = json.contains("vocab") && json.at("vocab").is_array();
  return json.value("type", json.contains("merges") ? "BPE" : has_pieces ? "Unigram" : "");
}

std::unique_ptr<const TokenModel> read_model(const Json& json) {
  const std::string type = model_type(json);
  if (type == "WordLevel") {
    return std::make_unique<WordLevel>(read_vocabulary(json.at("vocab")),
                                       json.at("unk_token").get<std::string>());
  }
  if (type == "Unigram") {
    return read_unigram(json);
  }
  if (type != "BPE") {
    throw std::runtime_error("model of type '" + type + "' is not supported");
  }
  refuse_option(json, "model", "dropout", 0.0);
  refuse_option(json, "model", "continuing_subword_prefix", "");
  refuse_option(json, "model", "end_of_word_suffix", "");
  BpeOptions options;
  if (json.contains("unk_token") && !json.at("unk_token").is_null()) {
    options.unk_token = json.at("unk_token").get<std::string>();
  }
  options.byte_fallback = json.value("byte_fallback", false);
  options.fuse_unk = json.value("fuse_unk", false);
  options.ignore_merges = json.value("ignore_merges", false);
  return std::make_unique<Bpe>(read_vocabulary(json.at("vocab")), read_merges(json.at("merges")),
                               std::move(options));
}

std::vector<AddedToken> read_added_tokens(const Json& json, const Vocabulary& vocabulary) {
  std::vector<AddedToken> tokens;
  if (json.is_null()) {
    return tokens;
  }
  for (const Json& entry : json) {
    AddedToken token;
    token.content = entry.at("content").get<std::string>();
    token.id = entry.at("id").get<int64_t>();
    token.special = entry.value("special", false);
    token.normalized = entry.value("normalized", !token.special);
    const std::string component = "added token '" + token.content + "'";
    token.single_word = entry.value("single_word", false);
    token.lstrip = entry.value("lstrip", false);
    token.rstrip = entry.value("rstrip", false);
    const auto in_model = find_id(vocabulary, token.content);
    if (in_model && *in_model != token.id) {
      throw std::runtime_error(component + " has id " + std::to_string(token.id) +
                               ", but the vocabulary gives it " + std::to_string(*in_model));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenFinder make_finder(const std::vector<AddedToken>& tokens, bool normalized,
                             const Normalizer& normalizer) {
  std::vector<AddedToken> chosen;
  for (AddedToken token : tokens) {
    if (token.normalized == normalized) {
      token.content = normalized ? normalizer(token.content) : token.content;
      chosen.push_back(std::move(token));
    }
  }
  return AddedTokenFinder(std::move(chosen));
}

const Json& required(const Json& json, const char* key) {
  if (!json.is_object() || !json.contains(key)) {
    throw std::runtime_error(std::string("has no \"") + key +
                             "\", expected a tokenizer as Hugging Face writes them");
  }
  return json.at(key);
}

Json value_or_null(const Json& json, const char* key) {
  return json.contains(key) ? json.at(key) : Json(nullptr);
}

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(const Json& json)
      : normalizer(make_normalizer(value_or_null(json, "normalizer"))),
        pre_tokenizer(make_pre_tokenizer(value_or_null(json, "pre_tokenizer"))),
        decoding(make_decoding(value_or_null(json, "decoder"))),
        model(read_model(required(json, "model"))),
        added(read_added_tokens(value_or_null(json, "added_tokens"), model->vocabulary())),
        raw_finder(make_finder(added, false, normalizer)),
        normalized_finder(make_finder(added, true, normalizer)),
        around(read_post_processor(value_or_null(json, "post_processor"))) {
    for (const char* key : {"truncation", "padding"}) {
      if (!value_or_null(json, key).is_null()) {
        passed_over.emplace_back(key);
      }
    }
    for (const auto& [token, id] : model->vocabulary()) {
      token_of[id] = token;
    }
    for (const AddedToken& token : added) {
      token_of[token.id] = token.content;
      added_ids.emplace(token.content, token.id);
      if (token.special) {
        special_ids.insert(token.id);
      }
    }
  }

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Decoding decoding;
  std::unique_ptr<const TokenModel> model;
  std::vector<AddedToken> added;
  AddedTokenFinder raw_finder;
  AddedTokenFinder normalized_finder;
  Vocabulary added_ids;
  std::unordered_map<int64_t, std::string> token_of;
  std::unordered_set<int64_t> special_ids;
  SpecialTokens around;
  std::vector<std::string> passed_over;
};

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const std::filesystem::path file =
      std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  const Json json = read_json_file(file);
  try {
    return Tokenizer(std::make_unique<const Parts>(json));
  } catch (const Json::exception& e) {
    throw std::runtime_error(
        file.string() + ": is not a tokenizer as Hugging Face writes them: " + json_problem(e));
  } catch (const std::exception& e) {
    throw std::runtime_error(file.string() + ": " + e.what());
  }
}

std::vector<int64_t> Tokenizer::encode(std::string_view text) const {
  if (!is_utf8(text)) {
    throw std::invalid_argument("cannot encode text that is not UTF-8");
  }
  std::vector<int64_t> ids;
  for (const auto& raw : parts_->raw_finder.split(text)) {
    if (raw.id) {
      ids.push_back(*raw.id);
      continue;
    }
    const std::string normalized = parts_->normalizer(std::string(raw.text));
    for (const auto& part : parts_->normalized_finder.split(normalized)) {
      if (part.id) {
        ids.push_back(*part.id);
        continue;
      }
      const bool at_start = raw.text.data() == text.data() && part.text.data() == normalized.data();
      for (const std::string& word : parts_->pre_tokenizer(std::string(part.text), at_start)) {
        parts_->model->encode_word(word, ids);
      }
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int64_t id : ids) {
    const auto found = parts_->token_of.find(id);
    if (found != parts_->token_of.end() && !(skip_special && parts_->special_ids.contains(id))) {
      tokens.push_back(found->second);
    }
  }
  return parts_->decoding(std::move(tokens));
}

std::optional<int64_t> Tokenizer::token_id(std::string_view token) const {
  const auto added = find_id(parts_->added_ids, token);
  return added ? added : find_id(parts_->model->vocabulary(), token);
}

const SpecialTokens& Tokenizer::special_tokens() const { return parts_->around; }

const std::vector<std::string>& Tokenizer::passed_over() const { return parts_->passed_over; }

int64_t Tokenizer::id_bound() const {
  int64_t bound = 0;
  for (const auto& [id, token] : parts_->token_of) {
    bound = std::max(bound, id + 1);
  }
  return bound;
}

int64_t Tokenizer::vocab_size() const {
  const Vocabulary& vocabulary = parts_->model->vocabulary();
  auto size = static_cast<int64_t>(vocabulary.size());
  for (const auto& [token, id] : parts_->added_ids) {
    size += find_id(vocabulary, token) ? 0 : 1;
  }
  return size;
}

}  // namespace ringside::engine
