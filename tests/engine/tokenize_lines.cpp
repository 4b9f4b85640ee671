// tokenize_lines TOKENIZER_JSON: reads JSON texts or lists of ids, one a line; answers each with
// {"ids", "text", "text_skip", "vocab_size", "before", "after"}, for the comparison with the Python
// tokenizers in tokenizer_parity.py and tokenizer_pipelines.py.
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenize_lines TOKENIZER_JSON\n";
    return 2;
  }
  try {
    const auto tokenizer = ringside::engine::Tokenizer::load(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      const auto question = nlohmann::json::parse(line);
      const auto ids = question.is_string() ? tokenizer.encode(question.get<std::string>())
                                            : question.get<std::vector<int64_t>>();
      const nlohmann::json answer = {{"ids", ids},
                                     {"text", tokenizer.decode(ids, false)},
                                     {"text_skip", tokenizer.decode(ids, true)},
                                     {"vocab_size", tokenizer.vocab_size()},
                                     {"before", tokenizer.special_tokens().before},
                                     {"after", tokenizer.special_tokens().after}};
      std::cout << answer.dump() << "\n";
    }
  } catch (const std::exception& e) {
    std::cerr << "tokenize_lines: " << e.what() << "\n";
    return 1;
  }
  return 0;
}
