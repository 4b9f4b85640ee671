// Post-processor of a tokenizer.json: the special tokens around a text, such as <bos>.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace ringside::engine {

// Token ids before and after a text.
struct SpecialTokens {
  std::vector<int64_t> before;
  std::vector<int64_t> after;
};

// The field "post_processor" for one text. Supports null, TemplateProcessing (its "single"),
// BertProcessing, RobertaProcessing, ByteLevel, Sequence.
// Throws: std::runtime_error naming an unknown processor, a template that has not the text once, or
// a special token that its list lacks; an exception of the JSON library on a field that is missing
// or of another type.
SpecialTokens read_post_processor(const nlohmann::json& json);

}  // namespace ringside::engine
