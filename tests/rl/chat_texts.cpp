// Conversations in a model's own template, for chat_template_oracle.py: `chat_texts MODEL_DIRECTORY
// OPTIONS prompt|whole` reads {"messages", "tools"} lines and answers each with {"text", "ids"} or
// {"ids", "learned"}, or {"error"}.
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "rl/data/sft_examples.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: chat_texts MODEL_DIRECTORY OPTIONS prompt|whole\n";
    return 2;
  }
  using namespace ringside;
  const auto tokenizer = engine::Tokenizer::load(argv[1]);
  rl::Config config;
  config.model.path = argv[1];
  config.data.chat_template = rl::ChatTemplate::kModel;
  config.data.template_options = argv[2];
  rl::ChatFormat chat(config);
  for (std::string line; std::getline(std::cin, line);) {
    const auto record = nlohmann::ordered_json::parse(line);
    const rl::Conversation conversation{record.at("messages"), record.at("tools")};
    nlohmann::json answer;
    try {
      if (std::string(argv[3]) == "prompt") {
        const std::string text = chat.prompt(conversation);
        answer = {{"text", text}, {"ids", tokenizer.encode(text)}};
      } else {
        const auto tokens = rl::tokenize_example({"", "", conversation}, tokenizer, {}, chat);
        answer = {{"ids", tokens.ids}, {"learned", tokens.learned}};
      }
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << "\n";
  }
  return 0;
}
