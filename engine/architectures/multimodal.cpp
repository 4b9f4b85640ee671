#include "engine/architectures/multimodal.h"

#include <algorithm>
#include <iterator>

namespace ringside::engine {
namespace {

// Names of the tensors: the model.safetensors.index.json of each on the hub, and
// transformers 5, conversion_mapping.py.
constexpr MultimodalType kTable[] = {
    // Gemma 3 4B to 27B
    {"gemma3",
     "gemma3_text",
     "gemma3_text",
     "language_model.model.",
     "language_model.lm_head.weight",
     {"vision_tower.", "multi_modal_projector."}},
    // Mistral Small 3.1 and 3.2, Magistral, Devstral
    {"mistral3",
     "mistral",
     "mistral",
     "language_model.model.",
     "language_model.lm_head.weight",
     {"vision_tower.", "multi_modal_projector."}},
    // Qwen2.5-VL
    {.model_type = "qwen2_5_vl",
     .text_type = "qwen2_5_vl_text",
     .architecture = "qwen2",
     .trunk = "model.",
     .head = "lm_head.weight",
     .other_parts = {"visual."},
     .may_be_flat = true},
    // Qwen3.5, Qwen3.6
    {"qwen3_5",
     "qwen3_5_text",
     "qwen3_5_text",
     "model.language_model.",
     "lm_head.weight",
     {"model.visual."}},
    {.model_type = "qwen3_5_moe",
     .text_type = "qwen3_5_moe_text",
     .architecture = "qwen3_5_moe_text",
     .trunk = "model.language_model.",
     .head = "lm_head.weight",
     .other_parts = {"model.visual."},
     .stacks = ExpertStacks::kOutputsFirst},
    // Qwen3-VL
    {"qwen3_vl",
     "qwen3_vl_text",
     "qwen3",
     "model.language_model.",
     "lm_head.weight",
     {"model.visual."}},
    {.model_type = "qwen3_vl_moe",
     .text_type = "qwen3_vl_moe_text",
     .architecture = "qwen3_moe",
     .trunk = "model.language_model.",
     .head = "lm_head.weight",
     .other_parts = {"model.visual."},
     .stacks = ExpertStacks::kInputsFirst,
     .normalises_weights = true},
};

// Names that transformers has in memory: programs that save a state dict as it is write them.
constexpr const char* kTrunkInMemory = "model.language_model.";
constexpr const char* kHeadInMemory = "lm_head.weight";

}  // namespace

std::span<const MultimodalType> multimodal_types() { return kTable; }

const MultimodalType* find_multimodal_type(const std::string& model_type) {
  const auto* const found = std::ranges::find_if(
      kTable, [&](const MultimodalType& one) { return model_type == one.model_type; });
  return found == std::end(kTable) ? nullptr : found;
}

void put_in_place(const MultimodalType& type, const std::string& json, OnDiskConfig& on_disk) {
  on_disk.trunk = type.trunk;
  on_disk.head = type.head;
  on_disk.modules = kTrunkInMemory;
  if (on_disk.trunk != kTrunkInMemory) {
    on_disk.other_names.emplace_back(kTrunkInMemory, on_disk.trunk);
  }
  if (on_disk.head != kHeadInMemory) {
    on_disk.other_names.emplace_back(kHeadInMemory, on_disk.head);
  }
  on_disk.stacks = type.stacks;
  for (const char* part : type.other_parts) {
    if (part != nullptr) {
      on_disk.parts_left_out.emplace_back(part);
      if (!on_disk.parts_left_out.back().starts_with("model.")) {
        on_disk.parts_left_out.push_back(std::string("model.") + part);
      }
    }
  }
  on_disk.multimodal_json = json;
}

}  // namespace ringside::engine
