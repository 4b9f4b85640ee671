// Table of multimodal model_types whose text part is a model of one of the architectures. Only that
// part is trained: the others' weights are neither read nor written.
#pragma once

#include <array>
#include <span>
#include <string>

#include "engine/layers/model_config.h"

namespace ringside::engine {

// Where a multimodal model_type has its text part: fields in text_config, tensors under names of
// their own.
struct MultimodalType {
  const char* model_type;
  const char* text_type;     // model_type of text_config; it may be the architecture's, too
  const char* architecture;  // model_type of the text part here
  // Beginning of the names of the text part's tensors but for the head's, and the head's name, as
  // the model was published. As transformers names them in memory, which some programs write.
  const char* trunk;
  const char* head;
  std::array<const char*, 2> other_parts;  // beginnings of the names of other tensors; null: none
  // The text's fields may stand in config.json itself, without text_config.
  bool may_be_flat = false;
  // Experts of a layer are one tensor: [experts, inputs, outputs], or [experts, outputs, inputs].
  ExpertStacks stacks = ExpertStacks::kNone;
  // A token's routing weights sum to 1, whatever norm_topk_prob says.
  bool normalises_weights = false;
};

// All of them.
std::span<const MultimodalType> multimodal_types();

// The entry of a model_type; nullptr: there is none of this name.
const MultimodalType* find_multimodal_type(const std::string& model_type);

// Adds what the files of such a model hold beside its text part. json: the whole config.json.
void put_in_place(const MultimodalType& type, const std::string& json, OnDiskConfig& on_disk);

}  // namespace ringside::engine
