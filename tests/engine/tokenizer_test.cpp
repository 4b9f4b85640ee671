// A tokenizer.json component that is skipped rather than refused gives other ids than the model was
// trained with. The ids themselves are compared with Hugging Face's tokenizers in
// tokenizer_parity.py; here is what needs no Python.
#include "engine/tokenizer/tokenizer.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/tokenizer/text_stream.h"
#include "engine/tokenizer/utf8.h"
#include "tests/support/temporary_directory.h"

namespace ringside::engine {
namespace {

using Catch::Contains;
using nlohmann::json;
using test::TemporaryDirectory;
using Ids = std::vector<int64_t>;

json characters() {
  return json::parse(R"({
    "added_tokens": [{"id": 0, "content": "<pad>", "special": true, "normalized": false},
                     {"id": 1, "content": ";", "special": true, "normalized": false}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": "<unk>", "merges": [["a", "b"], "ab c"],
              "vocab": {"<pad>": 0, ";": 1, "<unk>": 2, "a": 3, "b": 4, "c": 5, "ab": 6, "abc": 7}}})");
}

Tokenizer load_tokenizer(const json& content) {
  const TemporaryDirectory dir;
  test::write_file(dir.path() / "tokenizer.json", content.dump());
  return Tokenizer::load(dir.path());
}

std::string error_of(json content, const json& patch) {
  content.merge_patch(patch);
  try {
    load_tokenizer(content);
  } catch (const std::runtime_error& e) {
    CHECK_THAT(e.what(), Contains("tokenizer.json"));
    return e.what();
  }
  return "no error";
}

TEST_CASE("tokenizer: merges, unknown characters and added tokens") {
  const Tokenizer tokenizer = load_tokenizer(characters());
  CHECK(tokenizer.encode("") == Ids{});
  CHECK(tokenizer.encode("abcab") == Ids{7, 6});
  CHECK(tokenizer.encode("bac;") == Ids{4, 3, 5, 1});
  CHECK(tokenizer.encode("a<pad>zb") == Ids{3, 0, 2, 4});
  CHECK(tokenizer.vocab_size() == 8);
  CHECK(tokenizer.token_id("abc") == 7);
  CHECK(tokenizer.token_id("nothing") == std::nullopt);
}

TEST_CASE("tokenizer: decode leaves out special tokens on request and ids without a token always") {
  const Tokenizer tokenizer = load_tokenizer(characters());
  CHECK(tokenizer.decode(Ids{7, 1, 0}, /*skip_special=*/false) == "abc;<pad>");
  CHECK(tokenizer.decode(Ids{7, 1, 0}, /*skip_special=*/true) == "abc");
  CHECK(tokenizer.decode(Ids{7, 99, -1, 3}, /*skip_special=*/false) == "abca");
}

TEST_CASE("tokenizer: text that is not UTF-8 is an error, bytes that are none come back replaced") {
  CHECK_THROWS_AS(load_tokenizer(characters()).encode("a\xff"), std::invalid_argument);
  CHECK(to_valid_utf8("a\xff\xe2\x82z") == "a\xEF\xBF\xBD\xEF\xBF\xBDz");
  CHECK(to_valid_utf8("\xed\xa0\x80") == "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(to_valid_utf8("\xf0\x9f\x98\x80") == "\xf0\x9f\x98\x80");
}

json unigram() {
  return {{"model",
           {{"type", "Unigram"},
            {"unk_id", 0},
            {"vocab", json::array({json::array({"?", 0.0}), json::array({"a", -1.0}),
                                   json::array({"b", -1.5}), json::array({"ab", -2.0}),
                                   json::array({"bb", -1.0})})}}},
          {"decoder", {{"type", "Fuse"}}}};
}

TEST_CASE("tokenizer: a Unigram takes the pieces with the largest sum of scores") {
  const Tokenizer tokenizer = load_tokenizer(unigram());
  CHECK(tokenizer.encode("ab") == Ids{3});          // -2 against -1 - 1.5
  CHECK(tokenizer.encode("abb") == Ids{1, 4});      // -1 - 1 against -2 - 1.5
  CHECK(tokenizer.encode("axya") == Ids{1, 0, 1});  // unknown characters become one
  CHECK(tokenizer.encode("").empty());
  json wrong = unigram();
  wrong["model"]["unk_id"] = 5;
  CHECK_THAT(error_of(wrong, json::object()), Contains("unk_id 5"));
  json flat = unigram();  // as a BPE's vocabulary
  flat["model"]["vocab"] = {{"a", 0}, {"b", 1}};
  CHECK_THAT(error_of(flat, json::object()),
             Contains("a Unigram's entry is 0") && Contains("expected [token, score]"));
  wrong["model"]["unk_id"] = nullptr;
  CHECK_THROWS_WITH(load_tokenizer(wrong).encode("x"),
                    Contains("no piece") && Contains("no unk_id"));
}

TEST_CASE("tokenizer: a BPE with byte_fallback spells unknown characters with bytes") {
  json model = characters();
  model["model"]["byte_fallback"] = true;
  CHECK(load_tokenizer(model).encode("a\u00e9b") == Ids{3, 2, 4});  // without the pieces: unknown
  model["model"]["vocab"]["<0xC3>"] = 8;
  CHECK(load_tokenizer(model).encode("a\u00e9b") == Ids{3, 2, 4});  // one of two is not enough
  model["model"]["vocab"]["<0xA9>"] = 9;
  CHECK(load_tokenizer(model).encode("a\u00e9b") == Ids{3, 8, 9, 4});
}

TEST_CASE("tokenizer: truncation and padding of the file change nothing and are named") {
  json content = characters();
  CHECK(load_tokenizer(content).passed_over().empty());
  content["truncation"] = {{"max_length", 2}};
  content["padding"] = {{"pad_id", 0}};
  const Tokenizer tokenizer = load_tokenizer(content);
  CHECK(tokenizer.passed_over() == std::vector<std::string>{"truncation", "padding"});
  CHECK(tokenizer.encode("abcab;b") == Ids{7, 6, 1, 4});
}

TEST_CASE("tokenizer: a post-processor that it cannot honour is refused by name") {
  const json good = characters();
  const auto refused = [&](const json& processor) {
    return error_of(good, {{"post_processor", processor}});
  };
  CHECK_THAT(refused({{"type", "Unheard"}}), Contains("post_processor") && Contains("'Unheard'"));
  const json text = {{"Sequence", {{"id", "A"}}}}, bos = {{"SpecialToken", {{"id", "<s>"}}}};
  json shape = {{"type", "TemplateProcessing"},
                {"single", json::array({bos, text})},
                {"special_tokens", {{"<s>", {{"ids", {9}}}}}}};
  json content = good;
  content["post_processor"] = shape;
  CHECK(load_tokenizer(content).special_tokens().before == Ids{9});
  CHECK(load_tokenizer(content).encode("a") == Ids{3});  // encode() has the text alone
  shape["single"] = json::array({bos});
  CHECK_THAT(refused(shape), Contains("the text 0 times"));
  shape["single"] = json::array({text, text});
  CHECK_THAT(refused(shape), Contains("the text 2 times"));
  shape = {{"type", "TemplateProcessing"},
           {"single", json::array({bos, text})},
           {"special_tokens", json::object()}};
  CHECK_THAT(refused(shape), Contains("'<s>' is not among"));
}

TEST_CASE("tokenizer: what it does not understand is refused by name") {
  const json good = characters();
  CHECK(error_of(good, json::object()) == "no error");
  CHECK_THAT(error_of(good, {{"normalizer", {{"type", "StripAccents"}}}}),
             Contains("normalizer") && Contains("StripAccents"));
  for (const char* charsmap : {"", "!!!!", "AAAA", "CAAAAAAAAAA=", "BAAAAA=="}) {
    CHECK_THAT(error_of(good, {{"normalizer",
                                {{"type", "Precompiled"}, {"precompiled_charsmap", charsmap}}}}),
               Contains("precompiled_charsmap"));
  }
  // A trie whose only unit points behind its end.
  const json far = {{"type", "Precompiled"}, {"precompiled_charsmap", "BAAAAAD8AAA="}};
  json lost = good;
  lost["normalizer"] = far;
  CHECK_THROWS_WITH(load_tokenizer(lost).encode("a"), Contains("out of its array"));
  CHECK_THAT(error_of(good, {{"pre_tokenizer", {{"type", "UnicodeScripts"}}}}),
             Contains("UnicodeScripts"));
  const json metaspace = {
      {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "sometimes"}};
  CHECK_THAT(error_of(good, {{"pre_tokenizer", metaspace}}), Contains("'sometimes'"));
  CHECK_THAT(error_of(good, {{"decoder", {{"type", "WordPiece"}}}}),
             Contains("decoder") && Contains("WordPiece"));
  CHECK_THAT(error_of(good, {{"model", {{"type", "WordPiece"}}}}), Contains("WordPiece"));
  CHECK_THAT(error_of(good, {{"model", {{"dropout", 0.1}}}}), Contains("dropout"));
  CHECK_THAT(error_of(good, {{"model", {{"merges", json::array({"a q"})}}}}), Contains("'q'"));
  CHECK_THAT(error_of(good, {{"model", {{"merges", json::array({"a c"})}}}}), Contains("'ac'"));
  json split = {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}};
  CHECK_THAT(error_of(good, {{"pre_tokenizer", split}}), Contains("regular expression '('"));
  // What Oniguruma has and PCRE2 has not, or reads as something else.
  for (const char* pattern :
       {"(?m:.)", "a(?i)b", "(?~ab)", "\\g<1>", "\\Qa", "[[:graph:]]", "[a", "\\"}) {
    split["pattern"]["Regex"] = pattern;
    CHECK_THAT(error_of(good, {{"pre_tokenizer", split}}),
               Contains("regular expression '" + std::string(pattern) + "'"));
  }
  split["pattern"]["Regex"] = "a";
  split["behavior"] = "Sometimes";
  CHECK_THAT(error_of(good, {{"pre_tokenizer", split}}),
             Contains("'Sometimes'") && Contains("MergedWithPrevious"));
  json added = good;
  added["added_tokens"][0]["id"] = 5;
  CHECK_THAT(error_of(added, json::object()), Contains("<pad>") && Contains("id 5"));
  CHECK_THROWS_WITH(Tokenizer::load("/nonexistent"), Contains("/nonexistent"));
}

// Vocabularies in which the text of an id depends on its neighbours: bytes of characters that come
// one by one, and a space that the first token loses.
std::vector<Tokenizer> dependent_decoders() {
  json bytes = characters(), fallback = characters(), metaspace = characters();
  json& vocabulary =
      bytes["model"]["vocab"];  // bytes 0xE2 0x82 0xAC 0xC3 0xFF in ByteLevel's letters
  for (const char* letter :
       {"\u00e2", "\u0124", "\u00ac", "\u00c3", "\u00ff", "x\u00e2", "\u0124\u00ac", "\u00bb"}) {
    vocabulary[letter] = vocabulary.size();
  }
  bytes["decoder"] = {{"type", "ByteLevel"}};
  for (const char* piece :
       {"<0xE2>", "<0x82>", "<0xAC>", "<0x41>", "<0xFF>", "\u2581a", "\u2581"}) {
    fallback["model"]["vocab"][piece] = fallback["model"]["vocab"].size();
    metaspace["model"]["vocab"][piece] = metaspace["model"]["vocab"].size();
  }
  fallback["model"]["byte_fallback"] = true;
  fallback["decoder"] = json::parse(R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  metaspace["decoder"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
  std::vector<Tokenizer> all;
  for (const json& one : {bytes, fallback, metaspace}) {
    all.push_back(load_tokenizer(one));
  }
  return all;
}

TEST_CASE(
    "tokenizer: a stream of ids gives a beginning of their text, and holds back at most a "
    "character") {
  std::mt19937 random(5);
  for (const Tokenizer& tokenizer : dependent_decoders()) {
    for (int round = 0; round < 300; ++round) {
      Ids ids;
      std::vector<std::string> joined{""};
      TextStream stream(tokenizer);
      for (int i = 0; i < 1 + round; ++i) {
        // Long runs of text, too, behind which the front is forgotten.
        ids.push_back(random() % 3 == 0 ? random() % (tokenizer.id_bound() + 1) : 3 + random() % 5);
        joined.push_back(joined.back() + stream.add(ids.back()));
      }
      const std::string whole = tokenizer.decode(ids, /*skip_special=*/false);
      for (const std::string& beginning : joined) {
        REQUIRE(whole.starts_with(beginning));
      }
      ids.push_back(5);  // "c" ends what was held back
      joined.push_back(joined.back() + stream.add(5));
      CHECK(joined.back() == tokenizer.decode(ids, /*skip_special=*/false));
    }
  }
}

}  // namespace
}  // namespace ringside::engine
