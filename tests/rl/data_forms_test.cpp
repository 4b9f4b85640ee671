// Public data sets in the form in which they are published: a recipe names their fields, and the
// reward finds their answers.
#include <catch2/catch.hpp>
#include <string>

#include "rl/data/text_data.h"
#include "rl/rewards/reward.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

using Catch::Contains;

// The prompts of a file with this text.
std::vector<Prompt> prompts_of_text(const std::string& text, const Config& config) {
  const test::TemporaryDirectory directory;
  const auto file = directory.path() / "data.jsonl";
  test::write_file(file, text);
  return read_prompts(file.string(), config);
}

double math_score(const std::string& completion, const std::string& answer) {
  return make_reward("math_answer", {})({"", completion, answer});
}

const char* const kGsm8k =
    R"({"question": "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did Natalia sell altogether in April and May?", "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nNatalia sold 48+24 = <<48+24=72>>72 clips altogether in April and May.\n#### 72"})";

TEST_CASE("GSM8K: the answer follows the last ####") {
  Config config;
  config.data.prompt_key = "question";
  config.data.answer_after = "####";
  const auto prompts = prompts_of_text(kGsm8k, config);
  REQUIRE(prompts.size() == 1);
  CHECK_THAT(prompts[0].prompt, Catch::StartsWith("Natalia sold clips to 48"));
  CHECK(prompts[0].answer == "72");
  CHECK(make_reward("exact_match", {})({"", "72", prompts[0].answer}) == 1.0);
  const auto twice = prompts_of_text(
      R"({"question": "q", "answer": "#### is before an answer\n#### 3 "})", config);
  CHECK(twice.at(0).answer == "3");
  config.data.answer_after = "";  // math_answer knows this form
  CHECK(math_score("so 72", prompts_of_text(kGsm8k, config)[0].answer) == 1.0);
}

TEST_CASE("an answer without the text that it follows is refused by its place") {
  Config config;
  config.data.answer_after = "####";
  CHECK_THROWS_WITH(prompts_of_text("{\"prompt\": \"a\", \"answer\": \"#### 1\"}\n"
                                    "{\"prompt\": \"b\", \"answer\": \"### 2\"}\n",
                                    config),
                    Contains("data.jsonl:2: \"answer\" has no \"####\" (data.answer_after)"));
}

TEST_CASE("with lora.adapters each record names one of them, or is refused by its place") {
  Config config;
  CHECK(prompts_of_text(R"({"prompt": "a", "adapter": "code"})", config).at(0).adapter.empty());
  config.lora.adapters = "math, code";
  config.data.adapter_key = "meta.tenant";
  const auto prompts = prompts_of_text(
      "{\"prompt\": \"a\", \"meta\": {\"tenant\": \"code\"}}\n"
      "{\"prompt\": \"b\", \"meta\": {\"tenant\": \"math\"}}\n",
      config);
  CHECK(prompts.at(0).adapter == "code");
  CHECK(prompts.at(1).adapter == "math");
  CHECK_THROWS_WITH(prompts_of_text(R"({"prompt": "a", "meta": {"tenant": "law"}})", config),
                    Contains("data.jsonl:1: \"meta.tenant\" is \"law\", and lora.adapters has none "
                             "for it; expected math or code"));
  CHECK_THROWS_WITH(prompts_of_text(R"({"prompt": "a", "adapter": "math"})", config),
                    Contains("data.jsonl:1: has no \"meta.tenant\" (data.adapter_key, which "
                             "lora.adapters reads)"));
}

TEST_CASE("MATH: the answer is the last box of the solution") {
  Config config;
  config.data.prompt_key = "problem";
  config.data.answer_key = "solution";
  const auto prompts = prompts_of_text(
      R"({"problem": "Let $f(x)=\\frac{x}{2}$. What is $f(1)$?", "level": "Level 1", "type": "Algebra", "solution": "We have $f(1)=\\boxed{\\frac{1}{2}}.$"})",
      config);
  CHECK(math_score("\\boxed{0.5}", prompts.at(0).answer) == 1.0);
  CHECK(math_score("\\boxed{2}", prompts[0].answer) == 0.0);
}

TEST_CASE("Open-R1: problem and answer stand among other fields") {
  Config config;
  config.data.prompt_key = "problem";
  const auto prompts = prompts_of_text(
      R"({"problem": "Find $v_R$.", "solution": "They meet.\n\nAnswer: $v_{R}=4$", "answer": "v_{R}=4\\mathrm{~}/\\mathrm{}", "problem_type": "Algebra", "question_type": "math-word-problem", "source": "olympiads", "uuid": "586fd646", "is_reasoning_complete": [true], "generations": ["<think>\n"], "correctness_math_verify": [true], "correctness_llama": null, "finish_reasons": null, "correctness_count": 1, "messages": [{"content": "Find $v_R$.", "role": "user"}]})",
      config);
  CHECK(prompts.at(0).prompt == "Find $v_R$.");
  CHECK(prompts[0].answer == "v_{R}=4\\mathrm{~}/\\mathrm{}");
}

// Columns and order of members as in BytedTsinghua-SIA/DAPO-Math-17k and verl's own files.
TEST_CASE("DAPO and verl: Parquet of messages, with the answer inside of reward_model") {
  Config config;
  config.data.answer_key = "reward_model.ground_truth";
  config.data.chat_template = ChatTemplate::kChatml;
  const auto prompts =
      read_prompts(std::string(RINGSIDE_GOLDENS) + "/parquet/dapo.parquet", config);
  REQUIRE(prompts.size() == 2);
  CHECK(prompts[0].prompt ==
        "<|im_start|>user\nWhat is 30 + 4?\n\nRemember to put your answer on its own line after "
        "\"Answer:\".<|im_end|>\n<|im_start|>assistant\n");
  CHECK(prompts[0].answer == "34");
  CHECK(prompts[1].answer == "-1");
  CHECK(prompts[0].is_chat);
}

}  // namespace
}  // namespace ringside::rl
