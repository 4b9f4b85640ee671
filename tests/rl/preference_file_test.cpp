// Guards: a completion that begins in the wrong place, so that a prompt is learned or a part of the
// answer is not; a form of record that is taken for another one; a reward model that is asked about
// other tokens than it was trained on.
#include "rl/data/preference_file.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "rl/data/reward_documents.h"
#include "rl/data/sft_file.h"
#include "tests/support/letter_tokenizer.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

using Catch::Contains;

// Letters, the roles' letters and chatml's markers are one token each.
constexpr const char* kMarkers = R"({
  "added_tokens": [{"id": 0, "content": "<|im_start|>", "special": true, "normalized": false},
                   {"id": 1, "content": "<|im_end|>", "special": true, "normalized": false},
                   {"id": 2, "content": ";", "special": true, "normalized": false}],
  "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
  "model": {"type": "BPE", "unk_token": "?", "merges": ["b c"],
            "vocab": {"<|im_start|>": 0, "<|im_end|>": 1, ";": 2, "?": 3, "a": 4, "b": 5, "c": 6, "s": 7, "i": 8, "t": 9, "n": 10,
                      "u": 11, "e": 12, "r": 13, "\n": 14, "bc": 15}}})";

class Pairs {
 public:
  Pairs() { test::write_file(directory_.path() / "tokenizer.json", kMarkers); }
  // The pairs that are left of these lines.
  std::vector<TokenizedPair> read(const std::string& lines, const Config& base = Config{}) const {
    test::write_file(directory_.path() / "data.jsonl", lines);
    Config config = base;
    config.algorithm.task = base.algorithm.task == Task::kRl ? Task::kDpo : base.algorithm.task;
    const auto tokenizer = engine::Tokenizer::load(directory_.path());
    PreferenceFile file((directory_.path() / "data.jsonl").string(), config, tokenizer, {2});
    std::vector<TokenizedPair> pairs;
    for (int64_t i = 0; i < file.size(); ++i) {
      if (auto read = file.read(i); read.example) {
        pairs.push_back(*std::move(read.example));
      }
    }
    return pairs;
  }
  // What a reward model reads of a completion.
  sp::Document judged(const nlohmann::ordered_json& prompt, const std::string& completion,
                      const Config& config) const {
    const auto tokenizer = engine::Tokenizer::load(directory_.path());
    return RewardDocuments(config, tokenizer, {2}).document(prompt, completion);
  }
  static Config chatml() {
    Config config;
    config.data.chat_template = ChatTemplate::kChatml;
    return config;
  }
  static Config reward_model() {
    Config config = chatml();
    config.algorithm.task = Task::kRewardModel;
    return config;
  }

 private:
  test::TemporaryDirectory directory_;
};

// "aab;|BC" with what is learned in capitals, special tokens as < > ;.
std::string shown(const TokenizedExample& example) {
  constexpr const char* kNames = "<>;?abcsitnuer.x";
  std::string text;
  for (std::size_t i = 0; i < example.ids.size(); ++i) {
    const char c = kNames[example.ids[i]];
    text += example.learned[i] ? static_cast<char>(c == '>'   ? ']'
                                                   : c == ';' ? '!'
                                                              : std::toupper(c))
                               : c;
  }
  return text;
}

TEST_CASE("a pair of texts: what follows the prompt is learned, with its end of sequence") {
  const auto pairs = Pairs().read(R"({"prompt": "ab", "chosen": "c", "rejected": "ca;"})"
                                  "\n");
  REQUIRE(pairs.size() == 1);
  CHECK(shown(pairs[0].chosen) == "abC!");
  CHECK(shown(pairs[0].rejected) == "abCA!");
}

TEST_CASE("whole texts: the completion begins where the ids differ") {
  const auto pairs = Pairs().read(R"({"chosen": "aabc", "rejected": "aaba"})"
                                  "\n");
  REQUIRE(pairs.size() == 1);
  CHECK(shown(pairs[0].chosen) == "aaX!");  // bc is one token
  CHECK(shown(pairs[0].rejected) == "aaBA!");
}

TEST_CASE("messages: the assistant's words after those in common are learned") {
  const std::string user = R"({"role": "u", "content": "a"})";
  const auto says = [](const std::string& text) {
    return R"({"role": "assistant", "content": ")" + text + "\"}";
  };
  const std::string explicit_prompt = R"({"prompt": [)" + user + R"(], "chosen": [)" + says("b") +
                                      R"(], "rejected": [)" + says("c") + "]}\n";
  const std::string implicit_prompt = R"({"chosen": [)" + user + ", " + says("b") +
                                      R"(], "rejected": [)" + user + ", " + says("c") + "]}\n";
  const std::string header = "<assistant.";
  for (const std::string& line : {explicit_prompt, implicit_prompt}) {
    const auto pairs = Pairs().read(line, Pairs::chatml());
    REQUIRE(pairs.size() == 1);
    CHECK(shown(pairs[0].chosen) == "<u.a>.<assistant.B].");
    CHECK(shown(pairs[0].rejected) == "<u.a>.<assistant.C].");
  }
  // What the assistant said before is part of the prompt; a later turn is not.
  const std::string turns = user + ", " + says("a") + ", " + user;
  const auto pairs =
      Pairs().read(R"({"chosen": [)" + turns + ", " + says("b") + ", " + user + ", " + says("a") +
                       R"(], "rejected": [)" + turns + ", " + says("c") + "]}\n",
                   Pairs::chatml());
  REQUIRE(pairs.size() == 1);
  CHECK(shown(pairs[0].rejected) == "<u.a>.<assistant.a>.<u.a>.<assistant.C].");
  CHECK(shown(pairs[0].chosen) == "<u.a>.<assistant.a>.<u.a>.<assistant.B].<u.a>.<assistant.A].");
}

TEST_CASE("a reward model reads of a completion what it was trained on") {
  using nlohmann::ordered_json;
  const Pairs pairs;
  const auto trained = [&](const std::string& line, const Config& config) {
    return make_reward_document(pairs.read(line + "\n", config).at(0).chosen);
  };
  const auto check_same = [](const sp::Document& got, const sp::Document& expected) {
    CHECK(got.ids == expected.ids);
    CHECK(got.entries.source == expected.entries.source);
  };
  Config plain = Pairs::reward_model();
  plain.data.chat_template = ChatTemplate::kNone;
  const std::string texts = R"({"prompt": "ab", "chosen": "ca", "rejected": "c"})";
  check_same(pairs.judged("ab", "ca", plain), trained(texts, plain));

  const Config chat = Pairs::reward_model();
  const std::string user = R"([{"role": "user", "content": "a"}])";
  const auto expected = trained(R"({"prompt": )" + user +
                                    R"(, "chosen": [{"role": "assistant", "content": "bc"}], )" +
                                    R"("rejected": [{"role": "assistant", "content": "c"}]})",
                                chat);
  check_same(pairs.judged(ordered_json::parse(user), "bc", chat), expected);
  // The prompt as a policy with the same template has it.
  check_same(pairs.judged("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n", "bc", chat),
             expected);
}

TEST_CASE("a completion that a reward model cannot read is refused") {
  const Pairs pairs;
  Config plain = Pairs::reward_model();
  plain.data.chat_template = ChatTemplate::kNone;
  plain.data.max_length = 5;
  CHECK_THROWS_WITH(pairs.judged("abc", "abca", plain),
                    Contains("data.max_length") && Contains("5"));
  CHECK_THROWS_WITH(pairs.judged(nlohmann::ordered_json::array(), "a", plain),
                    Contains("expected a text, or data.chat_template"));
  CHECK_THROWS_WITH(pairs.judged(3, "a", plain), Contains("no text and no list of messages"));
}

TEST_CASE("a prompt that is text beside messages must be what they begin with") {
  const auto line = [](const std::string& prompt) {
    return R"({"prompt": ")" + prompt +
           R"(", "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],)" +
           R"( "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]})" +
           "\n";
  };
  CHECK(Pairs().read(line("a"), Pairs::chatml()).size() == 1);
  CHECK_THROWS_WITH(Pairs().read(line("b"), Pairs::chatml()),
                    Contains("data.jsonl:1") && Contains("not their first message of a user"));
}

TEST_CASE("records that are no pair are errors that name the line and what was expected") {
  const Pairs pairs;
  const std::string good = R"({"prompt": "a", "chosen": "b", "rejected": "c"})"
                           "\n";
  CHECK_THROWS_WITH(pairs.read(good + R"({"prompt": "a", "chosen": "b"})"),
                    Contains("data.jsonl:2") && Contains("has no \"rejected\"") &&
                        Contains("expected {\"prompt\", \"chosen\", \"rejected\"}"));
  CHECK_THROWS_WITH(pairs.read(R"({"prompt": "a", "chosen": ["b"], "rejected": "c"})"),
                    Contains("\"chosen\" is an array") && Contains("\"rejected\" is a string"));
  CHECK_THROWS_WITH(pairs.read(R"({"prompt": [], "chosen": "b", "rejected": "c"})"),
                    Contains("\"prompt\" is an array"));
  CHECK_THROWS_WITH(pairs.read(R"({"prompt": 3, "chosen": "b", "rejected": "c"})"),
                    Contains("\"prompt\" is a number"));
  CHECK_THROWS_WITH(pairs.read(R"({"chosen": "ab", "rejected": "ab"})"),
                    Contains("no prompt to tell"));
  CHECK_THROWS_WITH(pairs.read(R"({"chosen": "ab", "rejected": "bb"})"),
                    Contains("differ from their first token"));
  CHECK_THROWS_WITH(
      pairs.read(R"({"chosen": [{"role": "u", "content": "a"}], "rejected": []})", Pairs::chatml()),
      Contains("data.jsonl:1"));
  CHECK_THROWS_WITH(pairs.read(R"({"chosen": [{"role": "u", "content": "a"}], )"
                               R"("rejected": [{"role": "u", "content": "b"}]})"),
                    Contains("data.chat_template is none"));
  const std::string other_prompts =
      R"({"chosen": [{"role": "u", "content": "a"}, {"role": "assistant", "content": "b"}], )"
      R"("rejected": [{"role": "u", "content": "b"}, {"role": "assistant", "content": "b"}]})";
  CHECK_THROWS_WITH(pairs.read(other_prompts, Pairs::chatml()), Contains("different prompts"));
  // A reward model judges whole conversations.
  CHECK(pairs.read(other_prompts, Pairs::reward_model()).size() == 1);
  CHECK(pairs.read(R"({"chosen": "ab", "rejected": "bb"})", Pairs::reward_model()).size() == 1);
}

TEST_CASE("a reward model's document is whole, and its entry is at the last token") {
  const auto pairs =
      Pairs().read(R"({"prompt": "ab", "chosen": "c", "rejected": "ca"})", Pairs::reward_model());
  REQUIRE(pairs.size() == 1);
  const sp::Document document = make_reward_document(pairs[0].rejected);
  CHECK(document.ids == pairs[0].rejected.ids);
  CHECK(document.entries.source == std::vector<int64_t>{4});
  document.entries.check();
}

TEST_CASE("a pair with a document that is too long is refused, left out or cut") {
  const Pairs pairs;
  const std::string lines = R"({"prompt": "aa", "chosen": "aa", "rejected": "a"})"
                            "\n"
                            R"({"prompt": "a", "chosen": "a", "rejected": "b"})"
                            "\n";
  Config config;
  config.data.max_length = 4;
  CHECK_THROWS_WITH(pairs.read(lines, config),
                    Contains("data.jsonl:1: 5 tokens, expected at most data.max_length = 4"));
  config.data.on_overlong = OnOverlong::kDrop;
  CHECK(pairs.read(lines, config).size() == 1);
  config.data.on_overlong = OnOverlong::kTruncate;
  const auto cut = pairs.read(lines, config);
  REQUIRE(cut.size() == 2);
  CHECK(shown(cut[0].chosen) == "aaAA");
  CHECK(shown(cut[0].rejected) == "aaA!");
  // A micro-batch holds every id of a reward model's document, and all but the last of a policy's.
  config = Config{};
  config.train.tokens_per_micro_batch = 4;
  CHECK(pairs.read(lines, config).size() == 2);
  config.algorithm.task = Task::kRewardModel;
  CHECK_THROWS_WITH(pairs.read(lines, config),
                    Contains("5 tokens, expected at most train.tokens_per_micro_batch = 4"));
}

}  // namespace
}  // namespace ringside::rl
