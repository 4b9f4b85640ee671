#include "rl/chat/parser_table.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/json/json_text.h"

namespace ringside::rl {
namespace {

struct NamedParser {
  const char* name;
  std::unique_ptr<MessageParser> (*make)(const ParserOptions&);
  const ReasoningTags* tags;  // null: the format marks reasoning itself
};

constexpr std::array<NamedParser, 12> kParsers = {{
    {"hermes", hermes_parser, &kQwenReasoning},
    {"qwen3_coder", qwen3_coder_parser, &kQwenReasoning},
    {"llama3_json", llama3_json_parser, &kDeepSeekReasoning},
    {"mistral", mistral_parser, &kMistralReasoning},
    {"deepseek_v3", deepseek_v3_parser, &kDeepSeekReasoning},
    {"deepseek_v31", deepseek_v31_parser, &kDeepSeekReasoning},
    {"gemma4", gemma4_parser, &kGemmaReasoning},
    {"glm45", glm_parser, &kGlmReasoning},
    {"kimi_k2", kimi_parser, &kKimiReasoning},
    {"minimax_m2", minimax_parser, &kMinimaxReasoning},
    {"gpt_oss", harmony_parser, nullptr},
    {"plain", plain_parser, &kDeepSeekReasoning},
}};

std::string all_names() {
  std::string names;
  for (const NamedParser& parser : kParsers) {
    names += (names.empty() ? "" : ", ") + std::string(parser.name);
  }
  return names;
}

const NamedParser& parser_of(std::string_view name) {
  const auto* found = std::find_if(kParsers.begin(), kParsers.end(),
                                   [&](const NamedParser& one) { return one.name == name; });
  if (found == kParsers.end()) {
    throw std::invalid_argument("no message parser is named '" + std::string(name) +
                                "': expected one of " + all_names());
  }
  return *found;
}

// A template that mentions all of `markers` is for this parser.
struct TemplateRule {
  const char* parser;
  std::array<std::string_view, 2> markers;
};

// The first that fits counts.
constexpr std::array<TemplateRule, 12> kRules = {{
    {"gpt_oss", {"<|channel|>", "<|message|>"}},
    {"gemma4", {"<|tool_call>", "call:"}},
    {"glm45", {"<tool_call>", "<arg_key>"}},
    {"kimi_k2", {"<|tool_calls_section_begin|>", ""}},
    {"minimax_m2", {"<minimax:tool_call>", ""}},
    {"qwen3_coder", {"<tool_call>", "<function="}},
    {"deepseek_v3", {"<｜tool▁calls▁begin｜>", "```json"}},
    {"deepseek_v31", {"<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"}},
    {"mistral", {"[TOOL_CALLS]", ""}},
    {"hermes", {"<tool_call>", ""}},
    {"llama3_json", {"<|python_tag|>", ""}},
    {"llama3_json", {"<|start_header_id|>", "\"parameters\""}},
}};

bool fits(const TemplateRule& rule, std::string_view text) {
  return text.find(rule.markers[0]) != std::string_view::npos &&
         text.find(rule.markers[1]) != std::string_view::npos;
}

// model_type of models whose completions have one format, whatever template they come with.
struct TypeRule {
  std::string_view model_type;
  const char* parser;
};
constexpr std::array<TypeRule, 2> kTypes = {
    {{"gpt_oss", "gpt_oss"}, {"deepseek_v3", "deepseek_v3"}}};

nlohmann::json member_of(const std::filesystem::path& file, const char* name) {
  const nlohmann::json object =
      std::filesystem::exists(file) ? engine::read_json_file(file) : nlohmann::json();
  return object.is_object() ? object.value(name, nlohmann::json()) : nlohmann::json();
}

// The texts of all of a model's chat templates; "" when it has none.
std::string template_texts(const std::filesystem::path& model) {
  std::string texts;
  if (std::filesystem::exists(model / "chat_template.jinja")) {
    texts = engine::read_text_file(model / "chat_template.jinja");
    if (std::filesystem::is_directory(model / "additional_chat_templates")) {
      for (const auto& file :
           std::filesystem::directory_iterator(model / "additional_chat_templates")) {
        texts += engine::read_text_file(file.path());
      }
    }
    return texts;
  }
  const nlohmann::json value = member_of(model / "tokenizer_config.json", "chat_template");
  if (value.is_string()) {
    return value.get<std::string>();
  }
  for (const nlohmann::json& one : value.is_array() ? value : nlohmann::json::array()) {
    const bool named = one.is_object() && one.contains("template") && one["template"].is_string();
    texts += named ? one["template"].get<std::string>() : "";
  }
  return texts;
}

}  // namespace

std::vector<std::string> message_parser_names() {
  std::vector<std::string> names;
  for (const NamedParser& parser : kParsers) {
    names.emplace_back(parser.name);
  }
  return names;
}

std::unique_ptr<MessageParser> make_message_parser(std::string_view name,
                                                   const ParserOptions& options) {
  return parser_of(name).make(options);
}

ReasoningStart reasoning_start(std::string_view name, std::string_view prompt) {
  const ReasoningTags* tags = parser_of(name).tags;
  return tags == nullptr ? ReasoningStart::kByModel : reasoning_start(prompt, *tags);
}

std::string choose_message_parser(const std::filesystem::path& model) {
  const std::string templates = template_texts(model);
  for (const TemplateRule& rule : kRules) {
    if (fits(rule, templates)) {
      return rule.parser;
    }
  }
  const nlohmann::json type = member_of(model / "config.json", "model_type");
  const std::string model_type = type.is_string() ? type.get<std::string>() : "";
  for (const TypeRule& rule : kTypes) {
    if (rule.model_type == model_type) {
      return rule.parser;
    }
  }
  throw std::invalid_argument("no message parser is known for the model in " + model.string() +
                              ": its chat template mentions the markers of none (" +
                              std::to_string(templates.size()) + " bytes read), and model_type '" +
                              model_type + "' names none; choose one of " + all_names());
}

}  // namespace ringside::rl
