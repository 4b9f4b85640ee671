// A client that gets a wrong call, half of a marker or less text than the model wrote pays for a
// parser's mistake: all formats against vLLM's parsers, and streams against whole texts.
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "rl/chat/markers.h"
#include "rl/chat/parser_table.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {

std::ostream& operator<<(std::ostream& out, const ParsedMessage& message) {
  out << "reasoning: " << message.reasoning << "\ncontent: " << message.content;
  for (const ToolCall& call : message.tool_calls) {
    out << "\ncall: " << call.name << " " << call.arguments;
  }
  return out;
}

namespace {

using nlohmann::json;

struct Case {
  std::string parser;
  ReasoningStart reasoning;
  std::string text;
  json message;  // [reasoning, content, [[name, arguments], ...]]
};

const json& goldens() {
  static const json all = json::parse(std::ifstream(RINGSIDE_GOLDENS "/message_parsers.json"));
  return all;
}

ReasoningStart start_of(const std::string& name) {
  static const std::map<std::string, ReasoningStart> kStarts = {
      {"none", ReasoningStart::kNone},
      {"model", ReasoningStart::kByModel},
      {"prompt", ReasoningStart::kInPrompt}};
  return kStarts.at(name);
}

std::vector<Case> same_as_vllm() {
  std::vector<Case> cases;
  for (const json& row : goldens()["cases"]) {
    cases.push_back({row[0], start_of(row[1]), row[2], {row[3], row[4], row[5]}});
  }
  return cases;
}

std::vector<Case> other_than_vllm() {
  std::vector<Case> cases;
  for (const json& row : goldens()["differences"]) {
    cases.push_back({row["parser"], start_of(row["reasoning"]), row["text"], row["ours"]});
  }
  return cases;
}

std::unique_ptr<MessageParser> parser_of(const Case& one) {
  return make_message_parser(one.parser, {one.reasoning, true, goldens()["tools"]});
}

json as_json(const ParsedMessage& message) {
  json calls = json::array();
  for (const ToolCall& call : message.tool_calls) {
    calls.push_back({call.name, call.arguments});
  }
  return {message.reasoning, message.content, calls};
}

TEST_CASE("messages are those of vLLM's parsers") {
  std::map<std::string, int> cases;
  for (const Case& one : same_as_vllm()) {
    INFO(one.parser << ": " << one.text);
    CHECK(as_json(parser_of(one)->parse(one.text)) == one.message);
    ++cases[one.parser];
  }
  for (const auto& [parser, count] : cases) {
    INFO(parser);
    CHECK(count >= 80);
  }
  CHECK(cases.size() == 11);
}

TEST_CASE("messages differ from vLLM's where the list of differences says so, and only there") {
  for (const json& row : goldens()["differences"]) {
    INFO(row["parser"] << ": " << row["text"] << " (" << row["reason"] << ")");
    const Case one{row["parser"], start_of(row["reasoning"]), row["text"], row["ours"]};
    CHECK(as_json(parser_of(one)->parse(one.text)) == row["ours"]);
    CHECK(row["ours"] != row["vllm"]);
  }
}

// Parts hold whole characters: their JSON text can be sent.
bool is_sendable(const ParsedMessage& part) {
  try {
    return !as_json(part).dump().empty();
  } catch (const json::exception&) {
    return false;
  }
}

TEST_CASE("streamed parts are the whole message wherever the text is cut") {
  std::mt19937 random(7);
  std::vector<Case> cases = same_as_vllm();
  for (Case& one : other_than_vllm()) {
    cases.push_back(std::move(one));
  }
  for (const Case& one : cases) {
    const auto parser = parser_of(one);
    const ParsedMessage whole = parser->parse(one.text);
    for (const std::size_t longest : {1, 3, 10, 60}) {
      const auto stream = parser->stream();
      ParsedMessage sent;
      std::string cuts;
      for (std::size_t at = 0; at < one.text.size();) {
        const std::size_t bytes = std::uniform_int_distribution<std::size_t>(0, longest)(random);
        ParsedMessage part = stream->feed(std::string_view(one.text).substr(at, bytes));
        at += bytes;
        cuts += " " + std::to_string(at);
        INFO(one.parser << ": " << one.text);
        CHECK(is_sendable(part));
        sent.append(std::move(part));
        CHECK(whole.content.starts_with(sent.content));
        CHECK(whole.reasoning.starts_with(sent.reasoning));
      }
      sent.append(stream->finish());
      INFO(one.parser << " cut at" << cuts << ": " << one.text);
      CHECK(sent == whole);
    }
  }
}

struct Format {
  const char* parser;
  const char* front;  // of a message's content
  std::vector<std::string> markers;
};

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {"hermes", "", {"<tool_call>"}},
      {"qwen3_coder", "", {"<tool_call>", "<function="}},
      {"llama3_json", "", {"<|python_tag|>"}},
      {"mistral", "", {"[TOOL_CALLS]", "[THINK]"}},
      {"deepseek_v3", "", {"<｜tool▁calls▁begin｜>"}},
      {"deepseek_v31", "", {"<｜tool▁calls▁begin｜>"}},
      {"gemma4", "", {"<|channel>", "<|tool_call>"}},
      {"glm45", "", {"<tool_call>"}},
      {"kimi_k2", "", {"<|tool_calls_section_begin|>"}},
      {"minimax_m2", "", {"<minimax:tool_call>"}},
      {"gpt_oss", "<|channel|>final<|message|>", {"<|end|>", "<|return|>", "<|call|>"}}};
  return all;
}

TEST_CASE("content is sent at once, but for what may begin a marker") {
  for (const Format& format : formats()) {
    for (const std::string& marker : format.markers) {
      for (std::size_t bytes = 1; bytes < marker.size(); ++bytes) {
        INFO(format.parser << ": " << marker.substr(0, bytes));
        const auto parser = make_message_parser(format.parser, {ReasoningStart::kByModel});
        const auto stream = parser->stream();
        CHECK(stream->feed(std::string(format.front) + "Plain").content == "Plain");
        CHECK(stream->feed(", text" + marker.substr(0, bytes)).content == ", text");
        ParsedMessage rest = stream->feed("~");
        rest.append(stream->finish());
        CHECK(rest.content == marker.substr(0, bytes) + "~");
      }
    }
  }
}

TEST_CASE("reasoning is sent at once, but for what may begin its end") {
  for (const std::string name : {"hermes", "qwen3_coder", "llama3_json", "deepseek_v3", "glm45",
                                 "kimi_k2", "minimax_m2", "plain"}) {
    INFO(name);
    const auto parser = make_message_parser(name, {ReasoningStart::kInPrompt});
    const auto stream = parser->stream();
    CHECK(stream->feed("Let me see").reasoning == "Let me see");
    CHECK(stream->feed(".</th") == ParsedMessage{".", "", {}});
    CHECK(stream->feed("ink>Yes") == ParsedMessage{"", "Yes", {}});
    CHECK(stream->finish() == ParsedMessage{});
  }
  const auto harmony = make_message_parser("gpt_oss", {})->stream();
  CHECK(harmony->feed("<|channel|>analysis<|message|>Let me").reasoning == "Let me");
  CHECK(harmony->feed(" see<|end") == ParsedMessage{" see", "", {}});
  CHECK(harmony->feed("|><|start|>assistant<|channel|>final<|message|>Yes") ==
        ParsedMessage{"", "Yes", {}});
}

TEST_CASE("calls are sent when nothing can change them any more") {
  const auto coder = make_message_parser("qwen3_coder", {ReasoningStart::kNone});
  const auto stream = coder->stream();
  CHECK(stream->feed("<tool_call><function=f><parameter=a>1</parameter></functio")
            .tool_calls.empty());
  CHECK(stream->feed("n>") == ParsedMessage{"", "", {{"f", R"({"a": "1"})"}}});
  CHECK(stream->feed("</tool_call>tail") == ParsedMessage{});
  CHECK(stream->finish() == ParsedMessage{});
  const auto harmony = make_message_parser("gpt_oss", {})->stream();
  CHECK(harmony->feed("<|channel|>commentary to=functions.f<|message|>{}").tool_calls.empty());
  CHECK(harmony->feed("<|call|>") == ParsedMessage{"", "", {{"f", "{}"}}});
}

TEST_CASE("a call of a format in blocks is sent at its end, with the model's id where it has one") {
  const auto glm = make_message_parser("glm45", {ReasoningStart::kNone})->stream();
  CHECK(glm->feed("Look \n<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_cal")
            .content == "Look");
  CHECK(glm->feed("l> so") == ParsedMessage{"", "", {{"f", R"({"a": "1"})"}}});
  CHECK(glm->feed("\n<tool_call>g</tool_call>").tool_calls == std::vector<ToolCall>{{"g", "{}"}});
  CHECK(glm->finish() == ParsedMessage{});
  const auto kimi = make_message_parser("kimi_k2", {ReasoningStart::kNone});
  CHECK(kimi->parse("<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3"
                    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>") ==
        ParsedMessage{"", "", {{"f", "{}", "functions.f:3"}}});
}

TEST_CASE("an answer of Llama with braces streams once its first object is no call") {
  const auto parser = make_message_parser("llama3_json", {ReasoningStart::kNone});
  auto stream = parser->stream();
  CHECK(stream->feed("{ ").content.empty());
  CHECK(stream->feed("x = 1").content == "{ x = 1");
  stream = parser->stream();
  CHECK(stream->feed(R"(JSON: {"a": "}")").content == "JSON: ");
  CHECK(stream->feed("} is").content == R"({"a": "}"} is)");
}

TEST_CASE("a message says where its reasoning begins") {
  CHECK(reasoning_start("hermes", "<|im_start|>assistant\n<think>\n") == ReasoningStart::kInPrompt);
  CHECK(reasoning_start("hermes", "<think>\n\n</think>\n\n") == ReasoningStart::kNone);
  CHECK(reasoning_start("hermes", "<|im_start|>assistant\n") == ReasoningStart::kByModel);
  CHECK(reasoning_start("mistral", "[/INST][THINK]") == ReasoningStart::kInPrompt);
  CHECK(reasoning_start("mistral", "<think>") == ReasoningStart::kByModel);
  CHECK(reasoning_start("gpt_oss", "<|start|>assistant") == ReasoningStart::kByModel);
  const auto mistral = make_message_parser("mistral", {ReasoningStart::kInPrompt});
  CHECK(mistral->parse("a[/THINK]b[THINK]") == ParsedMessage{"a", "b[THINK]", {}});
  // Without an opening tag at the front nothing is reasoning, unless the prompt has it.
  CHECK(make_message_parser("hermes", {})->parse("a</think>b") ==
        ParsedMessage{"", "a</think>b", {}});
}

TEST_CASE("calls are content when they are not to be read") {
  for (const Case& one : same_as_vllm()) {
    if (one.parser == "gpt_oss" || one.reasoning != ReasoningStart::kNone) {
      continue;
    }
    INFO(one.parser << ": " << one.text);
    CHECK(make_message_parser(one.parser, {one.reasoning, false})->parse(one.text) ==
          ParsedMessage{"", one.text, {}});
  }
  const auto parser = make_message_parser("hermes", {ReasoningStart::kInPrompt, false});
  CHECK(parser->parse("a</think> <tool_call>") == ParsedMessage{"a", " <tool_call>", {}});
}

TEST_CASE("a header of harmony that is cut short shows nothing") {
  const auto parser = make_message_parser("gpt_oss", {});
  for (const std::string_view header :
       {"<|channel|>commentary to=functions.f <|constrain|>json<|message|",
        " to=functions.f<|channel|>commentary<|message|"}) {
    for (std::size_t bytes = 0; bytes <= header.size(); ++bytes) {
      INFO(header.substr(0, bytes));
      CHECK(parser->parse(header.substr(0, bytes)) == ParsedMessage{});
    }
  }
}

TEST_CASE("a text of any length and bytes is read in linear time") {
  const std::string spaces(300'000, '\n');
  std::string markers;
  for (int i = 0; i < 30'000; ++i) {
    markers += "<tool_call><function=<parameter=[TOOL_CALLS]{\"</think><|end|>\xE3\x80";
  }
  for (const std::string& name : message_parser_names()) {
    for (const auto& [text, step] : {std::pair(spaces, 2), std::pair(markers, 70)}) {
      const auto parser = make_message_parser(name, {ReasoningStart::kInPrompt});
      const auto stream = parser->stream();
      std::size_t bytes = 0;
      for (std::size_t at = 0; at < text.size(); at += step) {
        const ParsedMessage part = stream->feed(std::string_view(text).substr(at, step));
        bytes += part.content.size() + part.reasoning.size();
      }
      const ParsedMessage rest = stream->finish();
      INFO(name);
      CHECK(bytes + rest.content.size() + rest.reasoning.size() <= text.size());
    }
  }
}

TEST_CASE("white space is what Python's str.strip() removes") {
  // All of " ".join(c for c in map(chr, range(0x110000)) if c.isspace()) of Python 3.11.
  const std::string spaces =
      "\t\n\v\f\r\x1C\x1D\x1E\x1F "
      "\u0085\u00A0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
      "\u2009\u200A\u2028\u2029\u202F\u205F\u3000";
  CHECK(python_strip(spaces + "a" + spaces + "b" + spaces) == "a" + spaces + "b");
  CHECK(python_strip(spaces).empty());
  CHECK(python_strip("\u200B\xE3\x80") == "\u200B\xE3\x80");
}

TEST_CASE("unknown names are refused with all names") {
  CHECK_THROWS_WITH(make_message_parser("hermes2", {}),
                    "no message parser is named 'hermes2': expected one of hermes, qwen3_coder, "
                    "llama3_json, mistral, deepseek_v3, deepseek_v31, gemma4, glm45, kimi_k2, "
                    "minimax_m2, gpt_oss, plain");
  CHECK_THROWS_AS(reasoning_start("", ""), std::invalid_argument);
  CHECK(message_parser_names().size() == 12);
}

TEST_CASE("a model's templates choose the parser, then its model_type") {
  struct Choice {
    const char* templates;
    const char* model_type;
    const char* parser;
  };
  for (const auto& [templates, model_type, parser] :
       {Choice{"within <tool_call></tool_call> tags", "qwen3", "hermes"},
        {"<tool_call>\n<function=x>\n<parameter=y>", "qwen3_5", "qwen3_coder"},
        {"{{'<|python_tag|>' + x}}", "llama", "llama3_json"},
        {"<|start_header_id|> {\"name\": .., \"parameters\": ..}", "llama", "llama3_json"},
        {"{{ '[TOOL_CALLS][' }}", "mistral", "mistral"},
        {"<｜tool▁calls▁begin｜>..```json", "deepseek_v3", "deepseek_v3"},
        {"<｜tool▁calls▁begin｜>..<｜tool▁sep｜>", "deepseek_v3", "deepseek_v31"},
        {"<|start|>assistant<|channel|>final<|message|>", "other", "gpt_oss"},
        {"'<|tool_call>call:' ~ name ~ '{'", "gemma4", "gemma4"},
        {"<tool_call>{name}\n<arg_key>{key}</arg_key>", "glm4_moe", "glm45"},
        {"<|tool_calls_section_begin|>", "kimi_k2", "kimi_k2"},
        {"'<minimax:tool_call>'", "minimax_m2", "minimax_m2"},
        {"nothing", "gpt_oss", "gpt_oss"}}) {
    INFO(templates);
    const test::TemporaryDirectory model;
    test::write_file(model.path() / "config.json", json{{"model_type", model_type}}.dump());
    test::write_file(model.path() / "tokenizer_config.json",
                     json{{"chat_template", templates}}.dump());
    CHECK(choose_message_parser(model.path()) == parser);
  }
}

TEST_CASE("templates are found in all their files") {
  const test::TemporaryDirectory model;
  test::write_file(model.path() / "tokenizer_config.json",
                   R"({"chat_template": [{"name": "default", "template": "x"},
                                         {"name": "tool_use", "template": "[TOOL_CALLS]"}]})");
  CHECK(choose_message_parser(model.path()) == "mistral");
  test::write_file(model.path() / "chat_template.jinja", "x");
  CHECK_THROWS_WITH(choose_message_parser(model.path()),
                    Catch::Contains(model.path().string()) &&
                        Catch::Contains("choose one of hermes, qwen3_coder, "));
  std::filesystem::create_directories(model.path() / "additional_chat_templates");
  test::write_file(model.path() / "additional_chat_templates" / "tools.jinja", "<tool_call>");
  CHECK(choose_message_parser(model.path()) == "hermes");
}

}  // namespace
}  // namespace ringside::rl
