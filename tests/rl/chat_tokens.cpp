// Tokens of chat examples for chat_oracle.py: `chat_tokens TOKENIZER chatml|llama3 DATA.jsonl`
// prints a line of JSON per record, {"ids", "learned", "prompt"}: the first two of its "messages",
// the last of its "turns".
#include <iostream>
#include <nlohmann/json.hpp>

#include "rl/data/record_set.h"
#include "rl/data/sft_examples.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: chat_tokens TOKENIZER chatml|llama3 DATA.jsonl\n";
    return 2;
  }
  using namespace ringside;
  const auto tokenizer = engine::Tokenizer::load(argv[1]);
  rl::Config config;
  config.data.chat_template =
      std::string(argv[2]) == "llama3" ? rl::ChatTemplate::kLlama3 : rl::ChatTemplate::kChatml;
  config.data.prompt_key = "turns";
  const auto prompts = rl::read_prompts(argv[3], config);
  rl::RecordSet records(argv[3]);
  rl::ChatFormat chat(config);
  for (int64_t i = 0; i < records.size(); ++i) {
    const auto example = rl::parse_sft_example(records.record(i), records.place(i), config.data);
    const auto tokens = rl::tokenize_example(example, tokenizer, {}, chat);
    std::cout << nlohmann::json{{"ids", tokens.ids},
                                {"learned", tokens.learned},
                                {"prompt", prompts[i].prompt}}
                     .dump()
              << "\n";
  }
  return 0;
}
