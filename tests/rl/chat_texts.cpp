// Conversations in a model's own template, for chat_template_oracle.py and
// tests/oracle/chat_templates.py: `chat_texts MODEL_DIRECTORY OPTIONS FORM` reads {"messages",
// "tools"} lines and answers each with an object, or with {"error"}:
//   prompt  {"text", "ids"} up to the beginning of an assistant's message
//   whole   {"ids", "learned"}
//   turns   [{"text", "decoded", "continues", "written"}]: the prompt of each assistant's message
//   as
//           the gateway sees it, when the messages before were sampled there as the template writes
//           them: as a text, as the tokens that it samples behind, and whether they are recorded
//           ones and then what is new; and the text through the marker that ends this message, ""
//           if the template does not write the message behind that prompt
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "rl/data/sft_examples.h"
#include "rl/gateway/chat_messages.h"
#include "rl/gateway/chat_turns.h"

namespace ringside {
namespace {

using Answer = std::function<nlohmann::json(const rl::Conversation&)>;

rl::Conversation first_messages(const rl::Conversation& conversation, std::size_t count) {
  rl::Conversation some{nlohmann::ordered_json::array(), conversation.tools};
  for (std::size_t i = 0; i < count; ++i) {
    some.messages.push_back(conversation.messages[i]);
  }
  return some;
}

// What ends a message: the template's closing (GLM's has none), or the last marker of the text,
// with white space behind it; nullopt without either.
std::optional<std::string> end_of(const engine::Tokenizer& tokenizer, const std::string& text,
                                  const std::optional<std::string>& closing) {
  if (closing && text.ends_with(*closing)) {
    return closing;
  }
  const std::size_t begin = text.rfind('<');
  const std::size_t end = text.find_last_not_of(" \n");
  const bool is_marker = begin != std::string::npos && begin < end &&
                         tokenizer.token_id(text.substr(begin, end + 1 - begin)).has_value();
  return is_marker ? std::optional(text.substr(begin)) : std::nullopt;
}

nlohmann::json turns_of(rl::ChatText& text, const engine::Tokenizer& tokenizer,
                        rl::Conversation conversation) {
  conversation.messages = rl::canonical_messages(conversation.messages);
  rl::ChatTurns turns;
  rl::TokenTree tree;
  nlohmann::json answers = nlohmann::json::array();
  for (std::size_t i = 1; i < conversation.messages.size(); ++i) {
    if (conversation.messages[i]["role"] != "assistant") {
      continue;
    }
    const rl::Conversation asked = first_messages(conversation, i);
    const rl::ChatTurns::Context context = turns.context(text, asked);
    std::vector<int64_t> ids = tree.sequence(context.end);
    ids.insert(ids.end(), context.ids.begin(), context.ids.end());
    const std::string prompt = text.prompt(asked);
    answers.push_back({{"text", prompt},
                       {"decoded", tokenizer.decode(ids, /*skip_special=*/false)},
                       {"continues", context.end > 0}});
    // What is said, and the marker that ends it, as the template writes them; or something else
    // where it writes them elsewhere.
    const std::string through = text.whole(first_messages(conversation, i + 1));
    const std::optional<std::string> end =
        end_of(tokenizer, through, text.closing(conversation.tools));
    const bool written =
        through.starts_with(prompt) && end && through.size() >= prompt.size() + end->size();
    const std::string said =
        written ? through.substr(prompt.size(), through.size() - prompt.size() - end->size())
                : "other";
    rl::SampledTokens sampled;
    sampled.ids = tokenizer.encode(said);
    const std::vector<int64_t> stop =
        tokenizer.encode(end.value_or(text.closing(conversation.tools).value_or("")));
    const bool stopped = !stop.empty();
    if (stopped) {
      sampled.ids.push_back(stop.front());
    }
    answers.back()["written"] =
        !written  ? ""
        : stopped ? prompt + said + tokenizer.decode({stop.data(), 1}, /*skip_special=*/false)
                  : through;
    if (sampled.ids.empty()) {
      continue;
    }
    sampled.logprobs.assign(sampled.ids.size(), -1.0F);
    sampled.version = 0;
    const int64_t tree_end = tree.add(context.end, context.ids, sampled);
    turns.add(context, conversation.messages[i], tree_end,
              stopped ? std::optional(stop.front()) : std::nullopt);
  }
  return answers;
}

}  // namespace
}  // namespace ringside

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: chat_texts MODEL_DIRECTORY OPTIONS prompt|whole|turns\n";
    return 2;
  }
  using namespace ringside;
  const auto tokenizer = engine::Tokenizer::load(argv[1]);
  rl::Config config;
  config.model.path = argv[1];
  config.data.chat_template = rl::ChatTemplate::kModel;
  config.data.template_options = argv[2];
  rl::ChatFormat chat(config);
  rl::ChatText text(rl::ChatFormat(config), tokenizer);
  const std::map<std::string, Answer> forms = {
      {"prompt",
       [&](const rl::Conversation& conversation) -> nlohmann::json {
         const std::string prompt = chat.prompt(conversation);
         return {{"text", prompt}, {"ids", tokenizer.encode(prompt)}};
       }},
      {"whole",
       [&](const rl::Conversation& conversation) -> nlohmann::json {
         const auto tokens = rl::tokenize_example({"", "", conversation}, tokenizer, {}, chat);
         return {{"ids", tokens.ids}, {"learned", tokens.learned}};
       }},
      {"turns", [&](const rl::Conversation& conversation) {
         return turns_of(text, tokenizer, conversation);
       }}};
  for (std::string line; std::getline(std::cin, line);) {
    const auto record = nlohmann::ordered_json::parse(line);
    nlohmann::json answer;
    try {
      answer = forms.at(argv[3])({record.at("messages"), record.at("tools")});
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << "\n";
  }
  return 0;
}
