#include "rl/rewards/json_schema_reward.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include "rl/rewards/answer_text.h"
#include "rl/rewards/json_schema.h"

namespace ringside::rl {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestDocument = 64 << 10;

// Throws std::invalid_argument.
JsonSchema parse_schema(std::string_view text) {
  if (json_depth(text) > kMaxJsonDepth) {
    throw std::invalid_argument("JSON schema: nested deeper than " + std::to_string(kMaxJsonDepth));
  }
  json schema = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) {
    throw std::invalid_argument("JSON schema: not valid JSON");
  }
  return JsonSchema(std::move(schema));
}

std::shared_ptr<const JsonSchema> read_schema(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || std::filesystem::is_directory(path)) {
    throw std::invalid_argument("cannot read rollout.reward_options.json_schema " + path);
  }
  try {
    return std::make_shared<const JsonSchema>(parse_schema(text.str()));
  } catch (const std::exception& error) {
    throw std::invalid_argument("rollout.reward_options.json_schema " + path + ": " + error.what());
  }
}

bool satisfies(std::string_view completion, StopTexts stops, const JsonSchema& schema) {
  const std::string_view text = without_stop(completion, stops);
  const std::string_view document = last_block(text, "json|JSON").value_or(text);
  if (document.size() > kLongestDocument || json_depth(document) > kMaxJsonDepth) {
    return false;
  }
  const json parsed = json::parse(document, nullptr, /*allow_exceptions=*/false);
  return !parsed.is_discarded() && schema.accepts(parsed);
}

}  // namespace

std::string json_schema_answer_problem(std::string_view answer, const RewardOptions& options) {
  if (!options.json_schema.empty()) {
    return "";  // the file is the schema
  }
  try {
    parse_schema(answer);
    return "";
  } catch (const std::exception& error) {
    return std::string("is no usable JSON schema: ") + error.what();
  }
}

Reward json_schema_reward(const RewardOptions& options) {
  if (!options.json_schema.empty()) {
    return [schema = read_schema(options.json_schema),
            stops = options.stops](const RewardInput& input) {
      return satisfies(input.completion, stops, *schema) ? 1.0 : 0.0;
    };
  }
  return [stops = options.stops](
             const RewardInput& input) {  // the answer has passed json_schema_answer_problem
    return satisfies(input.completion, stops, parse_schema(input.answer)) ? 1.0 : 0.0;
  };
}

}  // namespace ringside::rl
