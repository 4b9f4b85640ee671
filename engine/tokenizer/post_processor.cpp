#include "engine/tokenizer/post_processor.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace ringside::engine {
namespace {

using Json = nlohmann::json;

// [token, id]
int64_t id_of_pair(const Json& json) { return json.at(1).get<int64_t>(); }

SpecialTokens read_template(const Json& json) {
  const Json& tokens = json.at("special_tokens");
  SpecialTokens around;
  int texts = 0;
  for (const Json& piece : json.at("single")) {
    if (piece.contains("Sequence")) {
      ++texts;
      continue;
    }
    const auto name = piece.at("SpecialToken").at("id").get<std::string>();
    if (!tokens.contains(name)) {
      throw std::runtime_error("post_processor TemplateProcessing: '" + name +
                               "' is not among its special_tokens");
    }
    auto& side = texts == 0 ? around.before : around.after;
    for (const Json& id : tokens.at(name).at("ids")) {
      side.push_back(id.get<int64_t>());
    }
  }
  if (texts != 1) {
    throw std::runtime_error("post_processor TemplateProcessing: single has the text " +
                             std::to_string(texts) + " times, expected once");
  }
  return around;
}

SpecialTokens read_sequence(const Json& json) {
  SpecialTokens around;
  for (const Json& processor : json.at("processors")) {
    const SpecialTokens next = read_post_processor(processor);
    around.before.insert(around.before.begin(), next.before.begin(), next.before.end());
    around.after.insert(around.after.end(), next.after.begin(), next.after.end());
  }
  return around;
}

}  // namespace

SpecialTokens read_post_processor(const Json& json) {
  if (json.is_null()) {
    return {};
  }
  const auto type = json.at("type").get<std::string>();
  if (type == "TemplateProcessing") {
    return read_template(json);
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    return {{id_of_pair(json.at("cls"))}, {id_of_pair(json.at("sep"))}};
  }
  if (type == "ByteLevel") {  // changes offsets alone
    return {};
  }
  if (type == "Sequence") {
    return read_sequence(json);
  }
  throw std::runtime_error("post_processor of type '" + type + "' is not supported");
}

}  // namespace ringside::engine
