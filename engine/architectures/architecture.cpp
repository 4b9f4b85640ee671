#include "engine/architectures/architecture.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

namespace ringside::engine {

#define RINGSIDE_FAMILY(architecture) extern const Architecture architecture;
#include "engine/architectures/families.inc"
#undef RINGSIDE_FAMILY

namespace {

// Fields that do not change the forward in training: bookkeeping of transformers, initialisation,
// sampling defaults, and dropout, which reinforcement learning and evaluation run without.
const std::set<std::string_view> kWithoutEffect = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "add_cross_attention",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_implementation",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_labels",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
};

constexpr const Architecture* kTable[] = {
#define RINGSIDE_FAMILY(architecture) &architecture,
#include "engine/architectures/families.inc"
#undef RINGSIDE_FAMILY
};

}  // namespace

std::span<const Architecture* const> architectures() { return kTable; }

const Architecture* find_architecture(const std::string& model_type) {
  const auto* const found = std::ranges::find_if(
      kTable, [&](const Architecture* one) { return model_type == one->model_type; });
  return found == std::end(kTable) ? nullptr : *found;
}

const Architecture* find_text_part(const std::string& multimodal_type) {
  const auto* const found = std::ranges::find_if(kTable, [&](const Architecture* one) {
    return one->multimodal_type != nullptr && multimodal_type == one->multimodal_type;
  });
  return found == std::end(kTable) ? nullptr : *found;
}

std::string architecture_names() {
  std::string names = kTable[0]->model_type;
  for (std::size_t i = 1; i < std::size(kTable); ++i) {
    names.append(i + 1 == std::size(kTable) ? " or " : ", ").append(kTable[i]->model_type);
  }
  for (const Architecture* one : kTable) {
    if (one->multimodal_type != nullptr) {
      names.append(", or ").append(one->multimodal_type).append(" (its text part)");
    }
  }
  return names;
}

void refuse_unknown_multimodal_fields(const JsonObject& json) {
  // Of the other parts, which text alone never reaches.
  for (const char* key : {"vision_config", "image_token_id", "video_token_id",
                          "vision_start_token_id", "vision_end_token_id"}) {
    json.has(key);
  }
  refuse_unknown_fields(json);
}

void refuse_unknown_fields(const JsonObject& json) {
  for (const std::string& key : json.unread_keys()) {
    if (!kWithoutEffect.contains(key)) {
      json.fail(key,
                "is a field that this model_type does not have here, and it may change what "
                "the model computes; remove it if it does not");
    }
  }
}

}  // namespace ringside::engine
