// Questions on a terminal, each with a default, an option that answers it, and a check.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

namespace ringside::tools {

struct Question {
  std::string option;    // "--model": it answers the question
  std::string text;      // "directory of the model"
  std::string fallback;  // the answer of an empty line; "" = there is none
  // What is wrong with an answer; "" if it can be used.
  std::function<std::string(const std::string&)> problem;
};

class Interview {
 public:
  // ask: whether questions are asked; otherwise options and defaults answer.
  Interview(std::istream& in, std::ostream& out, bool ask) : in_(in), out_(out), ask_(ask) {}

  // The answer: `given` if it is not empty, else a line of the input, else the default. A wrong
  // line is explained and asked for again.
  // Throws: std::invalid_argument naming the option when it is wrong, or missing without a default.
  std::string answer(const Question& question, const std::string& given);

 private:
  std::istream& in_;
  std::ostream& out_;
  bool ask_;
};

}  // namespace ringside::tools
