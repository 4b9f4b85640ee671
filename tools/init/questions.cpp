#include "tools/init/questions.h"

#include <istream>
#include <ostream>
#include <stdexcept>

namespace ringside::tools {
namespace {

void require(const Question& question, const std::string& answer) {
  if (answer.empty()) {
    throw std::invalid_argument(question.option + " is missing: " + question.text);
  }
  if (const std::string problem = question.problem(answer); !problem.empty()) {
    throw std::invalid_argument(question.option + " " + problem);
  }
}

}  // namespace

std::string Interview::answer(const Question& question, const std::string& given) {
  if (!given.empty() || !ask_) {
    const std::string answer = given.empty() ? question.fallback : given;
    require(question, answer);
    return answer;
  }
  for (std::string line;;) {
    out_ << question.text << (question.fallback.empty() ? "" : " [" + question.fallback + "]")
         << ": " << std::flush;
    if (!std::getline(in_, line)) {
      require(question, question.fallback);
      return question.fallback;
    }
    const std::string answer = line.empty() ? question.fallback : line;
    const std::string problem = answer.empty() ? "is needed" : question.problem(answer);
    if (problem.empty()) {
      return answer;
    }
    out_ << "  " << problem << "\n";
  }
}

}  // namespace ringside::tools
