// Supervised examples that learn the wrong tokens - a user's words, a marker too few, another
// conversation's - lower the loss all the same. Ids and masks are compared with transformers' in
// chat_oracle.py; here is what needs no Python.
#include "rl/data/sft_examples.h"

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "rl/data/document_batches.h"
#include "rl/data/json_lines.h"
#include "rl/data/prompt_set.h"
#include "rl/data/sft_file.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

using Catch::Contains;
using Ids = std::vector<int64_t>;
using Mask = std::vector<bool>;

// Characters a to f, the roles' letters, line ends alone and as a pair, chatml's markers.
constexpr const char* kTokenizer = R"({
  "added_tokens": [{"id": 0, "content": "<|im_start|>", "special": true, "normalized": false},
                   {"id": 1, "content": "<|im_end|>", "special": true, "normalized": false},
                   {"id": 2, "content": ";", "special": true, "normalized": false}],
  "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
  "model": {"type": "BPE", "unk_token": "?", "merges": ["\n \n"],
            "vocab": {"<|im_start|>": 0, "<|im_end|>": 1, ";": 2, "?": 3, "a": 4, "b": 5, "c": 6, "s": 7, "i": 8, "t": 9, "n": 10,
                      "u": 11, "e": 12, "r": 13, "\n": 14, "\n\n": 15}}})";

class Files {
 public:
  Files() { test::write_file(directory_.path() / "tokenizer.json", kTokenizer); }
  engine::Tokenizer tokenizer() const { return engine::Tokenizer::load(directory_.path()); }
  Config config(const std::string& lines,
                ChatTemplate chat_template = ChatTemplate::kChatml) const {
    test::write_file(directory_.path() / "data.jsonl", lines);
    Config config;
    config.data.sft = (directory_.path() / "data.jsonl").string();
    config.data.chat_template = chat_template;
    return config;
  }
  std::vector<TokenizedExample> read(const std::string& lines,
                                     ChatTemplate chat_template = ChatTemplate::kChatml) const {
    return read_all(config(lines, chat_template));
  }
  // The documents that are left, in the order of the file.
  std::vector<TokenizedExample> read_all(const Config& config) const {
    const auto letters = tokenizer();
    SftFile file(config.data.sft, config, letters, {2});
    std::vector<TokenizedExample> examples;
    for (int64_t i = 0; i < file.size(); ++i) {
      if (auto read = file.read(i); read.example) {
        examples.push_back(*std::move(read.example));
      }
    }
    return examples;
  }
  DocumentSummary summary(const Config& config, int64_t bytes = 1 << 20) const {
    const auto letters = tokenizer();
    SftFile file(config.data.sft, config, letters, {2});
    return summarize(file, bytes);
  }

 private:
  test::TemporaryDirectory directory_;
};

TEST_CASE("every assistant's turn is learned with its end marker, and nothing else") {
  const auto examples = Files().read(
      R"({"messages": [{"role": "u", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "u", "content": "c"}, )"
      R"({"role": "assistant", "content": "\nc"}]})"
      "\n");
  REQUIRE(examples.size() == 1);
  const Ids assistant = {4, 7, 7, 8, 7, 9, 4, 10, 9};
  Ids ids = {0, 11, 14, 4, 1, 14, 0};
  Mask learned(7, false);
  const auto add = [&](const Ids& more, bool value) {
    ids.insert(ids.end(), more.begin(), more.end());
    learned.insert(learned.end(), more.size(), value);
  };
  add(assistant, false);
  add({14}, false);
  add({5, 1}, true);
  add({14, 0, 11, 14, 6, 1, 14, 0}, false);
  add(assistant, false);
  add({15, 6, 1}, true);  // the pair of line ends belongs to both; as in transformers it is learned
  add({14}, false);
  CHECK(examples[0].ids == ids);
  CHECK(examples[0].learned == learned);
  const sp::Document document = make_sft_document(examples[0]);
  CHECK(document.ids.size() == ids.size() - 1);
  REQUIRE(document.entries.size() == 5);
  for (std::size_t e = 0; e < 5; ++e) {
    const auto source = document.entries.source[e];
    CHECK(learned[source + 1]);
    CHECK(document.entries.target[e] == ids[source + 1]);
  }
  document.entries.check();
}

TEST_CASE("a completion is learned with its end of sequence") {
  const auto examples = Files().read(
      "{\"prompt\": \"ab\", \"completion\": \"c\"}\n{\"prompt\": \"a\", \"completion\": \"b;\"}\n",
      ChatTemplate::kNone);
  REQUIRE(examples.size() == 2);
  CHECK(examples[0].ids == Ids{4, 5, 6, 2});
  CHECK(examples[0].learned == Mask{false, false, true, true});
  CHECK(examples[1].ids == Ids{4, 5, 2});
  CHECK(examples[1].learned == Mask{false, true, true});
}

TEST_CASE("examples that cannot be learned from are errors that name the line") {
  const Files files;
  const std::string good = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
  const auto message = [](const std::string& messages) {
    return "{\"messages\": " + messages + "}\n";
  };
  CHECK_THROWS_WITH(files.read(good + "{\"prompt\": \"\", \"completion\": \"b\"}\n"),
                    Contains("data.jsonl:2: ") && Contains("prompt is empty"));
  CHECK_THROWS_WITH(files.read(good + message(R"([{"role": "u", "content": "a"}])")),
                    Contains("data.jsonl:2: ") && Contains("nothing to learn"));
  CHECK_THROWS_WITH(files.read(good + message("[]")), Contains("data.jsonl:2"));
  CHECK_THROWS_WITH(files.read(message(R"([{"role": "u"}])")),
                    Contains("data.jsonl:1") && Contains("content"));
  CHECK_THROWS_WITH(files.read(message(R"([{"role": "", "content": "a"}])")),
                    Contains("empty role"));
  CHECK_THROWS_WITH(files.read(message(R"([{"role": "u", "content": "a", "tool_calls": [1]}])")),
                    Contains("tool_calls"));
  CHECK_THROWS_WITH(files.read(message(R"([{"role": "u", "content": "a"}])"), ChatTemplate::kNone),
                    Contains("data.jsonl:1") && Contains("data.chat_template is none"));
  CHECK_THROWS_WITH(
      files.read(message(R"([{"role": "assistant", "content": "a"}])"), ChatTemplate::kLlama3),
      Contains("<|begin_of_text|>") && Contains("not one token"));
}

TEST_CASE("a document longer than a micro-batch is an error that names the line and both numbers") {
  const Files files;
  Config config = files.config(
      "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"aaaa\", \"completion\": \"b\"}\n",
      ChatTemplate::kNone);
  config.train.tokens_per_micro_batch = 5;
  CHECK(files.read_all(config).size() == 2);
  config.train.tokens_per_micro_batch = 4;
  CHECK_THROWS_WITH(files.read_all(config),
                    Contains("data.jsonl:2: 5 tokens") && Contains("tokens_per_micro_batch = 4"));
  config.train.tokens_per_micro_batch = 100;
  config.data.max_length = 6;  // which counts the last id too
  CHECK(files.read_all(config).size() == 2);
  config.data.max_length = 5;
  CHECK_THROWS_WITH(files.read_all(config),
                    Contains("data.jsonl:2: 6 tokens") && Contains("data.max_length = 5"));
}

TEST_CASE("documents that are too long are dropped or cut as data.on_overlong says, and counted") {
  const Files files;
  Config config = files.config(
      "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"aa\", \"completion\": \"bb\"}\n"
      "{\"prompt\": \"aaaaa\", \"completion\": \"b\"}\n",
      ChatTemplate::kNone);
  config.train.tokens_per_micro_batch = 2;
  config.data.on_overlong = OnOverlong::kDrop;
  DocumentSummary summary = files.summary(config);
  CHECK(summary.problems.empty());
  CHECK(summary.usable == 1);
  auto examples = files.read_all(config);
  REQUIRE(examples.size() == 1);
  CHECK(examples[0].ids == Ids{4, 5, 2});
  CHECK(describe_overlong(summary, config) ==
        "2 of 3 documents are longer than train.tokens_per_micro_batch = 2: dropped");
  config.data.on_overlong = OnOverlong::kTruncate;
  summary = files.summary(config);
  CHECK(summary.usable == 2);  // the third has nothing to learn left
  examples = files.read_all(config);
  REQUIRE(examples.size() == 2);
  CHECK(examples[1].ids == Ids{4, 4, 5});
  CHECK(examples[1].learned == Mask{false, false, true});
  config.data.max_length = 3;
  CHECK(describe_overlong(files.summary(config), config) ==
        "2 of 3 documents are longer than data.max_length = 3: truncated");
}

// Guards: an index that loses, joins or splits lines at the borders of what is read at once, or
// counts other lines than an editor does.
TEST_CASE("an index of lines finds the lines that are not blank, whatever their length") {
  const test::TemporaryDirectory dir;
  std::mt19937 random(3);
  std::string text;
  std::vector<std::string> lines;
  std::vector<int64_t> numbers;
  for (int64_t number = 1; number <= 300; ++number) {
    const std::size_t length = random() % 3 == 0 ? 0 : random() % 20000;
    std::string line(length, static_cast<char>('a' + random() % 26));
    if (length == 0 && random() % 2 == 0) {
      line = " \t\r";
    }
    if (length > 0) {
      line.insert(0, random() % 3, ' ');
      lines.push_back(line);
      numbers.push_back(number);
    }
    text += line + (number == 300 ? "" : "\n");
  }
  test::write_file(dir.path() / "data.jsonl", text);
  LineIndex index(dir.path() / "data.jsonl");
  REQUIRE(index.size() == static_cast<int64_t>(lines.size()));
  for (int64_t i = 0; i < index.size(); ++i) {
    CHECK(index.line(i) == lines[i]);
  }
  for (int64_t i = index.size() - 1; i >= 0; --i) {
    CHECK(index.line(i) == lines[i]);
    CHECK(index.line_number(i) == numbers[i]);
  }
  test::write_file(dir.path() / "data.jsonl", "a\n");
  CHECK_THROWS_WITH(index.line(index.size() - 1), Contains("data.jsonl has become shorter"));
  test::write_file(dir.path() / "blank.jsonl", " \n\n\r\n");
  CHECK_THROWS_WITH(LineIndex(dir.path() / "blank.jsonl"), Contains("holds no example"));
}

TEST_CASE("a look at the beginning of a file counts its documents and finds its problems there") {
  const Files files;
  std::string lines;
  for (int i = 0; i < 10; ++i) {
    lines += i % 4 == 3 ? "{\"prompt\": \"\", \"completion\": \"b\"}\n"
                        : "{\"prompt\": \"a\", \"completion\": \"b\"}\n\n";
  }
  const Config config = files.config(lines, ChatTemplate::kNone);
  DocumentSummary summary = files.summary(config);
  CHECK(summary.documents == 10);
  CHECK(summary.checked == 10);
  REQUIRE(summary.problems.size() == 2);
  CHECK_THAT(summary.problems[1], Contains("data.jsonl:14: the prompt is empty"));
  summary = files.summary(config, 100);
  CHECK(summary.documents == 10);
  CHECK(summary.checked == 3);
  CHECK(summary.problems.empty());
}

TEST_CASE("steps get each document once a pass, from any step on, and stop at the end") {
  const Files files;
  std::string lines;
  for (const char* prompt : {"a", "b", "c", "aa", "bb", "cc", "ab"}) {
    lines += std::string("{\"prompt\": \"") + prompt + "\", \"completion\": \"b\"}\n";
  }
  const Config config = files.config(lines, ChatTemplate::kNone);
  const auto letters = files.tokenizer();
  const auto steps_from = [&](int64_t first, int64_t count) {
    SftBatches batches(std::make_unique<SftFile>(config.data.sft, config, letters, Ids{2}),
                       {.batch_size = 3, .first_step = first, .end = 14, .seed = 5});
    std::vector<std::vector<Ids>> steps;
    for (int64_t s = 0; s < count; ++s) {
      steps.emplace_back();
      for (const TokenizedExample& example : batches.next().examples) {
        steps.back().push_back(example.ids);
      }
    }
    return steps;
  };
  const auto steps = steps_from(0, 6);
  std::map<Ids, int> seen;
  for (const auto& step : steps) {
    for (const Ids& ids : step) {
      ++seen[ids];
    }
  }
  CHECK(seen.size() == 7);
  for (const auto& [ids, times] : seen) {
    CHECK(times == 2);
  }
  CHECK(steps[3].size() == 3);
  CHECK(steps[4].size() == 2);  // 14 documents in steps of 3
  CHECK(steps[5].empty());
  CHECK(steps[0] != steps[2]);
  for (int64_t first = 0; first < 6; ++first) {
    CHECK(steps_from(first, 6 - first) == decltype(steps)(steps.begin() + first, steps.end()));
  }
}

TEST_CASE("a document that cannot be learned from is an error of its step, with file and line") {
  const Files files;
  const Config config = files.config(
      "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"\", \"completion\": \"b\"}\n",
      ChatTemplate::kNone);
  const auto letters = files.tokenizer();
  SftBatches batches(std::make_unique<SftFile>(config.data.sft, config, letters, Ids{2}),
                     {.batch_size = 1, .shuffle = false});
  CHECK(batches.next().examples.size() == 1);
  for (int again = 0; again < 2; ++again) {
    CHECK_THROWS_WITH(batches.next(), Contains("data.jsonl:2: the prompt is empty"));
  }
}

TEST_CASE(
    "prompts that are too long are dropped or cut as data.on_overlong says, at the same places for "
    "every reader") {
  const Files files;
  Config config = files.config(
      "{\"prompt\": \"abc\"}\n{\"prompt\": \"aabbc\"}\n{\"prompt\": \"c\"}\n", ChatTemplate::kNone);
  config.rollout.max_prompt_tokens = 3;
  const auto scan = [&](OnOverlong policy) {
    config.data.on_overlong = policy;
    return scan_prompt_set(config.data.sft, config, files.tokenizer());
  };
  const PromptSet refused = scan(OnOverlong::kError);
  REQUIRE(refused.problems.size() == 1);
  CHECK_THAT(refused.problems[0],
             Contains("1 of 3 prompts is longer than rollout.max_prompt_tokens = 3") &&
                 Contains("data.jsonl:2 has 5 tokens") && Contains("data.on_overlong"));
  const PromptSet dropped = scan(OnOverlong::kDrop);
  CHECK(dropped.problems.empty());
  REQUIRE(dropped.prompts.size() == 2);
  CHECK(dropped.prompts[1].prompt == "c");
  CHECK(dropped.prompts[1].id == "3");
  CHECK(dropped.longest == 3);
  const PromptSet cut = scan(OnOverlong::kTruncate);
  REQUIRE(cut.prompts.size() == 3);
  CHECK(prompt_ids(cut.prompts[1], prompt_rules(config), files.tokenizer()) == Ids{5, 5, 6});
  CHECK(
      describe_overlong(cut, prompt_rules(config)) ==
      "1 of 3 prompts is longer than rollout.max_prompt_tokens = 3: truncated to the last tokens");
  config.rollout.max_prompt_tokens = 0;
  CHECK_THAT(scan(OnOverlong::kDrop).problems.at(0), Contains("no prompt is left"));
}

// A tokenizer that puts ";" before a text and "b" after it.
engine::Tokenizer with_special_tokens(const test::TemporaryDirectory& directory) {
  auto json = nlohmann::json::parse(kTokenizer);
  const auto special = [](const char* id) {
    return nlohmann::json{{"SpecialToken", {{"id", id}}}};
  };
  const nlohmann::json text = {{"Sequence", {{"id", "A"}}}};
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", nlohmann::json::array({special(";"), text, special("b")})},
                            {"special_tokens", {{";", {{"ids", {2}}}}, {"b", {{"ids", {5}}}}}}};
  test::write_file(directory.path() / "tokenizer.json", json.dump());
  return engine::Tokenizer::load(directory.path());
}

TEST_CASE(
    "a prompt that is text begins with the tokenizer's special tokens, rendered ones do not") {
  const test::TemporaryDirectory directory;
  const engine::Tokenizer tokenizer = with_special_tokens(directory);
  Config config;
  Prompt prompt{"1", "ac", ""};
  const auto ids = [&] { return prompt_ids(prompt, prompt_rules(config), tokenizer); };
  CHECK(ids() == Ids{2, 4, 6});  // nothing after it: a completion follows
  config.data.add_special_tokens = AddSpecialTokens::kFalse;
  CHECK(ids() == Ids{4, 6});
  prompt.prompt = ";ac";
  config.data.add_special_tokens = AddSpecialTokens::kTrue;
  CHECK(ids() == Ids{2, 2, 4, 6});
  config.data.add_special_tokens = AddSpecialTokens::kAuto;
  CHECK(ids() == Ids{2, 4, 6});
  prompt.prompt = "ac";
  prompt.is_chat = true;
  CHECK(ids() == Ids{4, 6});
  // Counted in the length, and kept where a prompt is cut.
  prompt = {"1", "aacc", ""};
  config.rollout.max_prompt_tokens = 4;
  CHECK_THROWS_WITH(ids(), Contains("has 5 tokens"));
  config.data.on_overlong = OnOverlong::kTruncate;
  CHECK(ids() == Ids{2, 4, 6, 6});
}

TEST_CASE(
    "an example's prompt begins with the tokenizer's special tokens, its completion does not") {
  const test::TemporaryDirectory directory;
  const engine::Tokenizer tokenizer = with_special_tokens(directory);
  Config config;
  ChatFormat chat(config);
  const TokenizedExample example = tokenize_example({"a", "c", {}}, tokenizer, {1}, chat);
  CHECK(example.ids == Ids{2, 4, 6, 1});
  CHECK(example.learned == Mask{false, false, true, true});
  // A conversation is rendered: its template writes what it wants.
  config.data.chat_template = ChatTemplate::kChatml;
  ChatFormat chatml(config);
  SftExample talk;
  talk.conversation.messages = {{{"role", "assistant"}, {"content", "a"}}};
  CHECK(tokenize_example(talk, tokenizer, {1}, chatml).ids.front() == 0);
}

TEST_CASE("every line that cannot be used is named, with what it has and what was expected") {
  const Files files;
  const Config config = files.config(
      "{\"prompt\": \"a\", \"answer\": null}\n{\"question\": \"a\", \"id\": 1}\n[1]\n{\"prompt\": "
      "5}\n{\"prompt\": \n");
  const auto data = scan_prompts(config.data.sft, config);
  REQUIRE(data.items.size() == 1);
  CHECK(data.items[0].answer.empty());
  REQUIRE(data.problems.size() == 4);
  CHECK_THAT(
      data.problems[0],
      Contains("data.jsonl:2: has no \"prompt\" (data.prompt_key); it has \"question\", \"id\""));
  CHECK_THAT(data.problems[1], Contains("data.jsonl:3: holds an array, expected an object"));
  CHECK_THAT(data.problems[2], Contains("data.jsonl:4: \"prompt\" is a number, expected a string"));
  CHECK_THAT(data.problems[3], Contains("data.jsonl:5:12: not valid JSON"));
}

TEST_CASE("a prompt of messages is rendered up to the assistant's turn") {
  const Files files;
  const Config config = files.config(
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"answer\": 5}\n{\"prompt\": "
      "\"plain\"}\n");
  auto prompts = read_prompts(config.data.sft, config);
  REQUIRE(prompts.size() == 2);
  CHECK(prompts[0].prompt == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
  CHECK(prompts[0].answer == "5");
  CHECK(prompts[1].prompt == "plain");
  Config none = config;
  none.data.chat_template = ChatTemplate::kNone;
  CHECK_THROWS_WITH(read_prompts(config.data.sft, none),
                    Contains("data.jsonl:1") && Contains("data.chat_template"));
  Config llama = config;
  llama.data.chat_template = ChatTemplate::kLlama3;
  CHECK(read_prompts(config.data.sft, llama)[0].prompt ==
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_id|"
        ">assistant<|end_header_id|>\n\n");
}

}  // namespace
}  // namespace ringside::rl
