// Table of multimodal model_types whose text part is a model of one of the architectures. Of some
// the vision tower is read and written, too, where that is asked for. Weights of other parts are
// neither read nor written.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
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
  // Beginnings of the names of other tensors, a tower's first; null: none.
  std::array<const char*, 2> other_parts;
  // The text's fields may stand in config.json itself, without text_config.
  bool may_be_flat = false;
  // Experts of a layer are one tensor: [experts, inputs, outputs], or [experts, outputs, inputs].
  ExpertStacks stacks = ExpertStacks::kNone;
  // A token's routing weights sum to 1, whatever norm_topk_prob says.
  bool normalises_weights = false;
  std::optional<VisionFamily> tower = std::nullopt;  // of the tower that can be read
  // What fields mean that the model's class in transformers has and config.json lacks.
  std::array<int64_t, 3> rope_sections = {};  // 0: they must be there
  std::array<int64_t, 3> deepstack = {};      // 0: none
};

// All of them.
std::span<const MultimodalType> multimodal_types();

// The entry of a model_type; nullptr: there is none of this name.
const MultimodalType* find_multimodal_type(const std::string& model_type);

// Adds what the files of such a model hold beside its text part. json: the whole config.json.
// vision: whether its tower is part of the model.
void put_in_place(const MultimodalType& type, const std::string& json, bool vision,
                  OnDiskConfig& on_disk);

}  // namespace ringside::engine
