#include "rl/data/record_set.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "rl/config/data_files.h"
#include "rl/config/eval_sets.h"
#include "rl/config/load.h"
#include "rl/data/document_batches.h"
#include "rl/data/text_data.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

using Catch::Contains;

class Folder {
 public:
  std::string file(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((directory_.path() / name).parent_path());
    test::write_file(directory_.path() / name, text);
    return path(name);
  }
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }

 private:
  test::TemporaryDirectory directory_;
};

std::vector<std::string> prompts_of(const std::string& files) {
  Config config;
  std::vector<std::string> texts;
  for (const Prompt& prompt : read_prompts(files, config)) {
    texts.push_back(prompt.prompt);
  }
  return texts;
}

TEST_CASE("a path with dots names a field inside of a field, unless a field has that name") {
  Folder folder;
  const auto file = folder.file(
      "verl.jsonl",
      "{\"in\": {\"q\": \"a\"}, \"reward_model\": {\"style\": \"rule\", \"ground_truth\": "
      "\"72\"}}\n"
      "{\"in\": {\"q\": \"b\"}, \"reward_model.ground_truth\": 5}\n"
      "{\"in\": {\"q\": \"c\"}, \"reward_model\": {\"a.b\": {\"ground_truth\": \"no\"}}}\n");
  Config config;
  config.data.prompt_key = "in.q";
  config.data.answer_key = "reward_model.ground_truth";
  const auto prompts = read_prompts(file, config);
  REQUIRE(prompts.size() == 3);
  CHECK(prompts[0].prompt == "a");
  CHECK(prompts[0].answer == "72");
  CHECK(prompts[1].answer == "5");
  CHECK(prompts[2].answer.empty());
  config.data.answer_key = "reward_model.a.b.ground_truth";
  CHECK(read_prompts(file, config)[2].answer == "no");
  config.data.prompt_key = "in.text";
  CHECK_THROWS_WITH(read_prompts(file, config),
                    Contains("has no \"in.text\"") && Contains("it has \"in\", \"reward_model\""));
}

TEST_CASE("what an answer was in the file is kept, for rewards that compare texts") {
  Folder folder;
  const auto file = folder.file("a.jsonl",
                                "{\"prompt\": \"a\", \"answer\": [\"17\"]}\n"
                                "{\"prompt\": \"b\", \"answer\": true}\n"
                                "{\"prompt\": \"c\", \"answer\": 5}\n");
  const auto prompts = read_prompts(file, Config());
  CHECK(prompts[0].answer == "[\"17\"]");
  CHECK(prompts[0].answer_kind == "an array");
  CHECK(prompts[1].answer_kind == "a boolean");
  CHECK(prompts[2].answer_kind.empty());
}

TEST_CASE("a key that stands twice in one object of a row is refused, and named") {
  Folder folder;
  const std::string good = "{\"prompt\": \"a\", \"x\": {\"prompt\": 1}}";
  const std::string bad = "{\"prompt\": \"b\", \"x\": {\"y\": 1, \"y\": 2}}";
  CHECK(prompts_of(folder.file("good.jsonl", good + "\n" + good)).size() == 2);
  CHECK_THROWS_WITH(prompts_of(folder.file("bad.jsonl", good + "\n" + bad)),
                    Contains("bad.jsonl:2: key \"y\" stands twice in one object"));
  CHECK_THROWS_WITH(prompts_of(folder.file("bad.json", "[" + good + "," + bad + "]")),
                    Contains("bad.json: key \"y\" stands twice"));
}

TEST_CASE("a JSON array is read like lines, and its rows are named") {
  Folder folder;
  const auto good = folder.file("a.json", R"(  [{"prompt": "x", "answer": 1},
    {"prompt": "y"}])");
  CHECK(prompts_of(good) == std::vector<std::string>{"x", "y"});
  RecordSet records(good);
  CHECK(records.place(1) == good + ": row 2");
  CHECK(records.id(1) == "2");
  CHECK_THROWS_WITH(prompts_of(folder.file("b.json", R"([{"prompt": "x"}, 5])")),
                    Contains("b.json: row 2: holds a number, expected an object"));
  CHECK_THROWS_WITH(prompts_of(folder.file("c.json", "[]")), Contains("c.json is an empty array"));
  CHECK_THROWS_WITH(prompts_of(folder.file("d.json", "[{\"prompt\": \n]")), Contains("d.json:2"));
}

std::string parquet(const std::string& name) {
  return std::string(RINGSIDE_GOLDENS) + "/parquet/" + name + ".parquet";
}

// The file has 5 rows in row groups of 2.
TEST_CASE("a Parquet file is read like lines, whatever the order of its row groups") {
  const auto file = parquet("prompts");
  CHECK(prompts_of(file) == std::vector<std::string>{"one", "tw\u00f6", "three", "", "five"});
  RecordSet records(file);
  REQUIRE(records.size() == 5);
  for (const int64_t i : {4, 0, 3, 1, 2, 4}) {
    CHECK(records.record(i).at("answer") == i + 1);
  }
  CHECK(records.place(2) == file + ": row 3");
  CHECK(records.id(2) == "3");
  CHECK(records.offset(0) == 0);
  CHECK(records.offset(4) > records.offset(3));
  CHECK_FALSE(records.record(1).contains("note"));  // a null
  CHECK(records.record(0).at("note") == "n");
}

TEST_CASE("conversations in a Parquet file are learned from") {
  Config config;
  config.data.chat_template = ChatTemplate::kChatml;
  RecordSet records(parquet("messages"));
  const auto example = parse_sft_example(records.record(1), records.place(1), config.data);
  REQUIRE(example.conversation.messages.size() == 2);
  // The null members of a message are left out: chatml refuses tool calls.
  CHECK(example.conversation.messages.at(1).dump() == R"({"role":"assistant","content":"5"})");
}

TEST_CASE("a damaged Parquet file is refused by name") {
  Folder folder;
  std::ifstream file(parquet("prompts"), std::ios::binary);
  const std::string good(std::istreambuf_iterator<char>(file), {});
  CHECK_THROWS_WITH(prompts_of(folder.file("a.parquet", "PAR1 and so on")),
                    Contains("a.parquet cannot be read as Parquet: "));
  CHECK_THROWS_WITH(prompts_of(folder.file("cut.parquet", good.substr(0, good.size() - 9))),
                    Contains("cut.parquet cannot be read as Parquet: "));
  CHECK_THROWS_WITH(prompts_of(folder.file("empty.parquet", "")), Contains("no example"));
  CHECK_THROWS_WITH(prompts_of(parquet("no_rows")), Contains("it has no row"));
  // Damage anywhere is an error or is not seen, and never ends the program.
  int64_t refused = 0;
  for (std::size_t at = 4; at < good.size(); at += 7) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x5a);
    try {
      prompts_of(folder.file("bad.parquet", bad));
    } catch (const std::runtime_error& error) {
      CHECK_THAT(error.what(), Contains("bad.parquet"));
      ++refused;
    }
  }
  CHECK(refused > 50);
}

TEST_CASE("several files and patterns are one row of records with places of their own") {
  Folder folder;
  folder.file("parts/b.jsonl", "\n{\"prompt\": \"b\"}\n");
  folder.file("parts/a.jsonl", "{\"prompt\": \"a1\"}\n\n{\"prompt\": \"a2\"}\n");
  const auto c = folder.file("c.json", R"([{"prompt": "c"}])");
  const std::string list = absolute_data_files("[parts/*.jsonl, {path: c.json}]", folder.path(""));
  CHECK(prompts_of(list) == std::vector<std::string>{"a1", "a2", "b", "c"});
  RecordSet records(list);
  CHECK(records.place(1) == folder.path("parts/a.jsonl") + ":3");
  CHECK(records.place(2) == folder.path("parts/b.jsonl") + ":2");
  CHECK(records.id(2) == "b.jsonl:2");
  CHECK(records.part(2) == 0);
  CHECK(records.part(3) == 1);
  CHECK(records.offset(2) > records.offset(1));
  CHECK(data_files_exist(list));
  CHECK_FALSE(data_files_exist(folder.path("none*.jsonl")));
  CHECK_THROWS_WITH(RecordSet(folder.path("none*.jsonl")), Contains("no file matches"));
  // A file whose name has pattern characters is itself.
  CHECK(prompts_of(folder.file("x[1].jsonl", "{\"prompt\": \"q\"}\n")) ==
        std::vector<std::string>{"q"});
}

TEST_CASE("a list of data files is read from YAML and from the command line, and written back") {
  Folder folder;
  const auto recipe = folder.file("recipe.yaml",
                                  "data:\n  train:\n    - {path: a.jsonl, weight: 2}\n"
                                  "    - b.jsonl\n  eval: e.jsonl\neval: {every: 5}\n");
  const LoadedConfig loaded = load_config({recipe}, {});
  REQUIRE(loaded.errors.empty());
  const auto entries = data_file_entries(loaded.config.data.train);
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].path == folder.path("a.jsonl"));
  CHECK(entries[0].weight == 2.0);
  CHECK(entries[1].weight == 1.0);
  CHECK(loaded.config.data.eval == folder.path("e.jsonl"));
  const auto again = load_config({folder.file("dump.yaml", dump(loaded.config))}, {});
  CHECK(again.errors.empty());
  CHECK(again.config.data.train == loaded.config.data.train);
  const auto line = load_config({}, {"data.train=[{path: " + folder.path("a.jsonl") +
                                     ", weight: 2}, " + folder.path("b.jsonl") + "]"});
  CHECK(line.config.data.train == loaded.config.data.train);
  const auto problem = [&](const std::string& text) {
    const auto wrong = load_config({}, {"data.train=" + text});
    return wrong.errors.empty() ? "" : wrong.errors.front();
  };
  CHECK_THAT(problem("[{path: a, weight: 0}]"), Contains("not a finite number above 0"));
  CHECK_THAT(problem("[{path: a, wait: 1}]"), Contains("\"wait\" in an entry"));
  CHECK_THAT(problem("[{weight: 1}]"), Contains("without a path"));
  CHECK_THAT(problem("[]"), Contains("empty list"));
  CHECK_THAT(problem("[a, {"), Contains("is no list"));
  CHECK_THAT(problem("~nobody/a.jsonl"), Contains("home directory is not known"));
  const auto other = folder.file("other.yaml", "model:\n  path: [a, b]\n");
  CHECK_THAT(load_config({other}, {}).errors.at(0), Contains("is a list"));
}

TEST_CASE("held-out sets by name are read from YAML and from the command line, and written back") {
  Folder folder;
  const auto recipe =
      folder.file("recipe.yaml",
                  "data: {eval: e.jsonl}\neval:\n  every: 5\n  sets:\n    hard: h.jsonl\n"
                  "    mixed: [{path: a.jsonl, weight: 2}, b.jsonl]\n");
  const LoadedConfig loaded = load_config({recipe}, {});
  REQUIRE(loaded.errors.empty());
  const auto sets = eval_sets(loaded.config);
  REQUIRE(sets.size() == 3);
  CHECK(sets[0].key == "data.eval");
  CHECK(sets[0].metric("pass@4") == "eval/pass@4");
  CHECK(sets[1].files == folder.path("h.jsonl"));
  CHECK(sets[1].metric("reward") == "eval/hard/reward");
  CHECK(data_file_entries(sets[2].files).at(0).weight == 2.0);
  CHECK(best_metric(loaded.config) == "eval_reward");
  const auto again = load_config({folder.file("dump.yaml", dump(loaded.config))}, {});
  CHECK(again.errors.empty());
  CHECK(again.config.eval.sets == loaded.config.eval.sets);
  const auto named = [&](const std::vector<std::string>& more) {
    std::vector<std::string> line{"eval.sets={hard: " + folder.path("h.jsonl") + "}"};
    line.insert(line.end(), more.begin(), more.end());
    return load_config({}, line);
  };
  CHECK(best_metric(named({}).config) == "eval/hard/reward");
  CHECK(named({"eval.every=5", "checkpoint.best_metric=eval/hard/pass@1"}).ok());
  const auto wrong = named({"checkpoint.best_metric=eval/easy/reward"});
  REQUIRE_FALSE(wrong.errors.empty());
  CHECK_THAT(wrong.errors.front(),
             Contains("checkpoint.best_metric") && Contains("eval/hard/reward, eval/hard/pass@1"));
  CHECK(load_config({}, {"eval.sets={}"}).config.eval.sets.empty());
  const auto problem = [&](const std::string& text) {
    const auto bad = load_config({}, {"eval.sets=" + text});
    return bad.errors.empty() ? "" : bad.errors.front();
  };
  CHECK_THAT(problem("[a.jsonl]"), Contains("expected {NAME: FILES, ...}"));
  CHECK_THAT(problem("a.jsonl"), Contains("expected {NAME: FILES, ...}"));
  CHECK_THAT(problem("{a: }"), Contains("no file under a"));
  CHECK_THAT(problem("{a/b: x}"), Contains("the name \"a/b\""));
  CHECK_THAT(problem("{a:x.jsonl}"), Contains("a blank after \":\""));
  CHECK_THAT(problem("{a: x, a: y}"), Contains("two sets with the name \"a\""));
  CHECK_THAT(problem("{a: [{wait: 1}]}"), Contains("\"wait\" in an entry"));
  CHECK_THAT(problem("{a: x"), Contains("is no mapping"));
}

TEST_CASE("~ at the beginning of a path is the home directory") {
  ::setenv("HOME", "/home/someone", 1);
  const auto loaded = load_config({}, {"model.path=~/models/x", "data.train=[~/a.jsonl]"});
  CHECK(loaded.config.model.path == "/home/someone/models/x");
  CHECK(data_file_entries(loaded.config.data.train).at(0).path == "/home/someone/a.jsonl");
}

// Guards: shares that drift from the weights, items that are left out of a pass, and an order that
// depends on where a run resumed.
TEST_CASE("weighted files are mixed by their weights, each through its own passes") {
  const std::vector<OrderPart> parts{{7, 3.0}, {500, 1.0}, {2, 0.0001}};
  for (const bool shuffle : {true, false}) {
    DataOrder order(parts, 11, shuffle);
    std::vector<int64_t> all, counts(3, 0);
    std::map<int64_t, int64_t> seen;
    for (int64_t position = 0; position < 4000; ++position) {
      const int64_t item = order.at(position);
      all.push_back(item);
      ++counts[item < 7 ? 0 : item < 507 ? 1 : 2];
      ++seen[item];
    }
    // Of 1000: 750, 250 and 0.03, which becomes 1 at the cost of the first.
    CHECK(counts == std::vector<int64_t>{2996, 1000, 4});
    for (int64_t item = 0; item < 7; ++item) {
      CHECK(seen[item] == 2996 / 7);
    }
    for (int64_t item = 7; item < 507; ++item) {
      CHECK(seen[item] == 2);
    }
    DataOrder resumed(parts, 11, shuffle);
    for (const int64_t position : {3999, 0, 2500, 999, 1000, 3999, 1}) {
      CHECK(resumed.at(position) == all[static_cast<std::size_t>(position)]);
    }
    // No stretch of 40 is far from its share of 30 and 10.
    if (!shuffle) {
      for (std::size_t begin = 0; begin + 40 <= 1000; begin += 40) {
        const auto small = std::count_if(all.begin() + begin, all.begin() + begin + 40,
                                         [](int64_t item) { return item >= 7 && item < 507; });
        CHECK(small >= 9);
        CHECK(small <= 11);
      }
    }
  }
  DataOrder other(parts, 12, true), same(parts, 11, true);
  bool differs = false;
  for (int64_t position = 0; position < 50; ++position) {
    differs |= other.at(position) != same.at(position);
  }
  CHECK(differs);
}

TEST_CASE("files without weights are one list, in the order of a single file of the same size") {
  DataOrder parts({{3, 0.0}, {4, 0.0}}, 5, true), whole(7, 5, true);
  for (int64_t position = 0; position < 30; ++position) {
    CHECK(parts.at(position) == whole.at(position));
  }
  CHECK_THROWS_WITH(DataOrder({{3, 1.0}, {0, 1.0}}, 5, true), Contains("0 items"));
  CHECK_THROWS_WITH(DataOrder(std::vector<OrderPart>(1001, {1, 1.0}), 5, true),
                    Contains("1001 data files have weights"));
}

TEST_CASE("the fields of supervised examples have the names that the configuration says") {
  DataConfig data;
  data.prompt_key = "question";
  data.completion_key = "reply";
  data.messages_key = "chat";
  data.chat_template = ChatTemplate::kChatml;
  const auto example = [&](const char* text) {
    return parse_sft_example(nlohmann::ordered_json::parse(text), "f:1", data);
  };
  CHECK(example(R"({"question": "a", "reply": "b", "messages": 1})").completion == "b");
  CHECK(example(R"({"chat": [{"role": "user", "content": "a"}]})").conversation.messages.size() ==
        1);
  CHECK_THROWS_WITH(example(R"({"prompt": "a", "completion": "b"})"),
                    Contains("f:1: has no \"question\"") && Contains("{\"chat\"}"));
}

}  // namespace
}  // namespace ringside::rl
