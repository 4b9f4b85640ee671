#include "engine/architectures/unread_fields.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::engine {
namespace {

// Fields of transformers' own that do not change the forward in training: bookkeeping,
// initialisation, sampling defaults, and dropout, which reinforcement learning and evaluation run
// without. Nearly every file has some of them, so nothing is said about them.
const std::set<std::string_view> kOfTransformers = {
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

// Bookkeeping of other programs, settings of how something is computed and not what, losses of
// pre-training, lengths that something was trained or cut at.
const std::set<std::string_view> kBookkeeping = {
    "attn_implementation",
    "aux_loss_alpha",
    "axolotl_config",
    "base_model",
    "finetuned_from",
    "gradient_checkpointing",
    "is_llama_config",
    "library_name",
    "license",
    "max_seq_len",
    "max_seq_length",
    "max_sequence_length",
    "max_window_layers",
    "model_max_length",
    "model_name",
    "output_router_logits",
    "router_aux_loss_coef",
    "seq_length",
    "transformers.js_config",
};

struct NamePattern {
  std::string_view text;
  bool (*matches)(std::string_view name, std::string_view text);
};

bool begins_with(std::string_view name, std::string_view text) { return name.starts_with(text); }
bool ends_with(std::string_view name, std::string_view text) { return name.ends_with(text); }
bool holds(std::string_view name, std::string_view text) {
  return name.find(text) != std::string_view::npos;
}

constexpr NamePattern kBookkeepingPatterns[] = {
    {"_", begins_with},
    {"_version", ends_with},
    {"_token_id", ends_with},
    {"tokenizer_", begins_with},
    {"summary_", begins_with},
    {"initializer_", begins_with},
    {"use_flash_attn", begins_with},
    {"license_", begins_with},
    {"dropout", holds},
};

// Fields whose neutral value is not false or 0: no other value is passed over.
const std::map<std::string_view, nlohmann::json> kNeutralValues = {
    {"attention_multiplier", 1}, {"causal", true},          {"embedding_multiplier", 1},
    {"full_attn_mod", 1},        {"interpolate_factor", 1}, {"is_causal", true},
    {"lm_head_multiplier", 1},   {"logit_scale", 1},        {"logits_scaling", 1},
    {"residual_multiplier", 1},  {"use_rope", true},
};

constexpr std::array<std::string_view, 12> kOtherModalities = {
    "vision_",      "image_",
    "video_",       "audio_",
    "mm_",          "multimodal_",
    "projector_",   "boi_",
    "eoi_",         "spatial_merge_size",
    "ignore_index", "language_model_only"};

bool is_bookkeeping(std::string_view key) {
  return kBookkeeping.contains(key) ||
         std::ranges::any_of(kBookkeepingPatterns, [&](const NamePattern& pattern) {
           return pattern.matches(key, pattern.text);
         });
}

bool is_of_other_modality(std::string_view key) {
  return std::ranges::any_of(kOtherModalities,
                             [&](std::string_view begin) { return key.starts_with(begin); });
}

// transformers derives it; a file may say the same.
bool says_what_heads_say(const JsonObject& json, const nlohmann::json& groups) {
  const auto heads = json.json().find("num_attention_heads");
  const auto key_heads = json.json().find("num_key_value_heads");
  return heads != json.json().end() && key_heads != json.json().end() &&
         heads->is_number_integer() && key_heads->is_number_integer() &&
         groups.is_number_integer() &&
         groups.get<int64_t>() * key_heads->get<int64_t>() == heads->get<int64_t>();
}

bool changes_nothing(const JsonObject& json, const std::string& key) {
  const nlohmann::json& value = json.json().at(key);
  if (const auto neutral = kNeutralValues.find(key); neutral != kNeutralValues.end()) {
    return value == neutral->second;
  }
  return is_bookkeeping(key) || turns_nothing_on(value) ||
         (key == "num_key_value_groups" && says_what_heads_say(json, value));
}

void judge(const JsonObject& json, const std::string& key) {
  if (kOfTransformers.contains(key)) {
    return;
  }
  if (changes_nothing(json, key)) {
    json.pass_over(key);
    return;
  }
  json.refuse(key,
              "is a field that this model_type does not have here, and it may change what the "
              "model computes; remove it if it does not");
}

}  // namespace

bool turns_nothing_on(const nlohmann::json& value) {
  return value.is_null() || value == false || (value.is_number() && value == 0) || value == "" ||
         (value.is_structured() && value.empty());
}

void judge_unread_fields(const JsonObject& json) {
  for (const std::string& key : json.unread_keys()) {
    judge(json, key);
  }
}

void judge_unread_fields_around(const JsonObject& json, const JsonObject& text) {
  pass_over_other_modalities(json);
  for (const std::string& key : json.unread_keys()) {
    const auto same = text.json().find(key);
    if (same == text.json().end() || *same != json.json().at(key)) {
      judge(json, key);
    }
  }
}

void pass_over_other_modalities(const JsonObject& json) {
  for (const std::string& key : json.unread_keys()) {
    if (is_of_other_modality(key)) {
      json.has(key);
    }
  }
}

}  // namespace ringside::engine
