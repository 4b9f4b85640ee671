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
    // Qwen2-VL
    {.model_type = "qwen2_vl",
     .text_type = "qwen2_vl_text",
     .architecture = "qwen2",
     .trunk = "model.",
     .head = "lm_head.weight",
     .other_parts = {"visual."},
     .may_be_flat = true,
     .tower = VisionFamily::kQwen2Vl},
    // Qwen2.5-VL
    {.model_type = "qwen2_5_vl",
     .text_type = "qwen2_5_vl_text",
     .architecture = "qwen2",
     .trunk = "model.",
     .head = "lm_head.weight",
     .other_parts = {"visual."},
     .may_be_flat = true,
     .tower = VisionFamily::kQwen2_5Vl},
    // Qwen3.5, Qwen3.6
    {.model_type = "qwen3_5",
     .text_type = "qwen3_5_text",
     .architecture = "qwen3_5_text",
     .trunk = "model.language_model.",
     .head = "lm_head.weight",
     .other_parts = {"model.visual."},
     .tower = VisionFamily::kQwen3Vl,
     .rope_sections = {11, 11, 10}},
    {.model_type = "qwen3_5_moe",
     .text_type = "qwen3_5_moe_text",
     .architecture = "qwen3_5_moe_text",
     .trunk = "model.language_model.",
     .head = "lm_head.weight",
     .other_parts = {"model.visual."},
     .stacks = ExpertStacks::kOutputsFirst,
     .tower = VisionFamily::kQwen3Vl,
     .rope_sections = {11, 11, 10}},
    // Qwen3-VL
    {.model_type = "qwen3_vl",
     .text_type = "qwen3_vl_text",
     .architecture = "qwen3",
     .trunk = "model.language_model.",
     .head = "lm_head.weight",
     .other_parts = {"model.visual."},
     .tower = VisionFamily::kQwen3Vl,
     .rope_sections = {24, 20, 20},
     .deepstack = {8, 16, 24}},
    {.model_type = "qwen3_vl_moe",
     .text_type = "qwen3_vl_moe_text",
     .architecture = "qwen3_moe",
     .trunk = "model.language_model.",
     .head = "lm_head.weight",
     .other_parts = {"model.visual."},
     .stacks = ExpertStacks::kInputsFirst,
     .normalises_weights = true,
     .tower = VisionFamily::kQwen3Vl,
     .rope_sections = {24, 20, 20},
     .deepstack = {8, 16, 24}},
};

// Names that transformers has in memory: programs that save a state dict as it is write them.
constexpr const char* kTrunkInMemory = "model.language_model.";
constexpr const char* kHeadInMemory = "lm_head.weight";
constexpr const char* kTowerInMemory = "model.visual.";

}  // namespace

std::span<const MultimodalType> multimodal_types() { return kTable; }

const MultimodalType* find_multimodal_type(const std::string& model_type) {
  const auto* const found = std::ranges::find_if(
      kTable, [&](const MultimodalType& one) { return model_type == one.model_type; });
  return found == std::end(kTable) ? nullptr : found;
}

void put_in_place(const MultimodalType& type, const std::string& json, bool vision,
                  OnDiskConfig& on_disk) {
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
  if (vision) {
    on_disk.tower = type.other_parts.front();
    if (on_disk.tower != kTowerInMemory) {
      on_disk.other_names.emplace_back(kTowerInMemory, on_disk.tower);
    }
  }
  for (const char* part : type.other_parts) {
    if (part != nullptr && !(vision && part == type.other_parts.front())) {
      on_disk.parts_left_out.emplace_back(part);
      if (!on_disk.parts_left_out.back().starts_with("model.")) {
        on_disk.parts_left_out.push_back(std::string("model.") + part);
      }
    }
  }
  on_disk.multimodal_json = json;
}

}  // namespace ringside::engine
