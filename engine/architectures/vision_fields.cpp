#include "engine/architectures/vision_fields.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "engine/architectures/shared_fields.h"
#include "engine/architectures/unread_fields.h"

namespace ringside::engine {
namespace {

constexpr const char* kVision = "vision_config";
constexpr const char* kSections = "mrope_section";
constexpr const char* kInterleaved = "mrope_interleaved";
constexpr const char* kWindowBlocks = "fullatt_block_indexes";
constexpr const char* kDeepstack = "deepstack_visual_indexes";

int64_t size_or(const JsonObject& json, const char* key, int64_t missing) {
  return json.has(key) ? json.require_at_least(1, key) : missing;
}

// Names and defaults of a family's sizes, those of its class in transformers.
struct SizeFields {
  const char* width;
  const char* out;
  const char* activation;
  int64_t depth, default_width, mlp, patch;
};

SizeFields fields_of(VisionFamily family) {
  switch (family) {
    case VisionFamily::kQwen2Vl:
      return {"embed_dim", "hidden_size", "quick_gelu", 32, 1280, 0, 14};
    case VisionFamily::kQwen2_5Vl:
      return {"hidden_size", "out_hidden_size", "silu", 32, 3584, 3420, 14};
    case VisionFamily::kQwen3Vl:
      break;
  }
  return {"hidden_size", "out_hidden_size", "gelu_pytorch_tanh", 27, 1152, 4304, 16};
}

void read_sizes(const JsonObject& json, const ModelConfig& model, VisionConfig& c) {
  const SizeFields fields = fields_of(c.family);
  c.depth = size_or(json, "depth", fields.depth);
  c.width = size_or(json, fields.width, fields.default_width);
  c.heads = size_or(json, "num_heads", 16);
  c.patch = size_or(json, "patch_size", fields.patch);
  c.temporal_patch = size_or(json, "temporal_patch_size", 2);
  c.merge = size_or(json, "spatial_merge_size", 2);
  c.mlp = c.family == VisionFamily::kQwen2Vl
              ? static_cast<int64_t>(static_cast<double>(c.width) *
                                     json.number("mlp_ratio").value_or(4))
              : size_or(json, "intermediate_size", fields.mlp);
  if (const int64_t out = size_or(json, fields.out, 3584); out != model.hidden_size) {
    json.refuse(fields.out, "is " + std::to_string(out) + ", expected the text's hidden_size = " +
                                std::to_string(model.hidden_size));
  }
  if (c.width % c.heads != 0 || c.width / c.heads % 4 != 0) {
    json.fail("num_heads", "is " + std::to_string(c.heads) + " of width " +
                               std::to_string(c.width) +
                               ", expected heads of a multiple of 4 components");
  }
  expect_text(json, "hidden_act", fields.activation);
  // The hub's files and transformers have different names for it.
  expect_integer(json, "in_channels", 3, ", the colours of an image");
  expect_integer(json, "in_chans", 3, ", the colours of an image");
  expect_integer(json, "spatial_patch_size", c.patch, ", as patch_size");
  json.has("model_type");
  json.has("tokens_per_second");  // of videos
}

void check_blocks(const JsonObject& json, const char* key, const std::vector<int64_t>& blocks,
                  int64_t depth) {
  const bool ascends = std::ranges::is_sorted(blocks, std::less_equal<>());
  if (!ascends || (!blocks.empty() && (blocks.front() < 0 || blocks.back() >= depth))) {
    json.fail(key,
              "lists blocks that do not ascend from 0 to at most " + std::to_string(depth - 1));
  }
}

void read_windows(const JsonObject& json, VisionConfig& c) {
  c.window = size_or(json, "window_size", 112);
  c.full_blocks =
      json.has(kWindowBlocks) ? json.integers(kWindowBlocks) : std::vector<int64_t>{7, 15, 23, 31};
  check_blocks(json, kWindowBlocks, c.full_blocks, c.depth);
  if (c.window_tokens() < 1) {
    json.fail("window_size", "is " + std::to_string(c.window) +
                                 ", expected at least patch_size x spatial_merge_size = " +
                                 std::to_string(c.patch * c.merge));
  }
}

void read_positions(const JsonObject& json, VisionConfig& c) {
  c.positions = size_or(json, "num_position_embeddings", 2304);
  const auto side = std::llround(std::sqrt(static_cast<double>(c.positions)));
  if (side * side != c.positions) {
    json.fail("num_position_embeddings",
              "is " + std::to_string(c.positions) + ", expected a square number");
  }
}

void read_deepstack(const JsonObject& json, const MultimodalType& type, const ModelConfig& model,
                    VisionConfig& c) {
  const bool has_any = type.deepstack.back() > 0;
  if (json.has(kDeepstack)) {
    c.deepstack = json.integers(kDeepstack);
  } else if (has_any) {
    c.deepstack.assign(type.deepstack.begin(), type.deepstack.end());
  }
  if (!has_any && !c.deepstack.empty()) {
    json.refuse(kDeepstack, "lists blocks, but this model_type has no deepstack; expected none");
  }
  check_blocks(json, kDeepstack, c.deepstack, c.depth);
  if (static_cast<int64_t>(c.deepstack.size()) > model.num_hidden_layers) {
    json.fail(kDeepstack, "lists more blocks than the text has layers");
  }
}

// The object of RoPE that has a field; nullopt: none has.
std::optional<JsonObject> rope_with(const JsonObject& text, const char* key) {
  for (const char* block : {"rope_scaling", "rope_parameters"}) {
    if (auto rope = text.object(block); rope && rope->has(key)) {
      return rope;
    }
  }
  return std::nullopt;
}

RopeSections read_sections(const JsonObject& text, const MultimodalType& type,
                           const ModelConfig& model) {
  RopeSections sections{type.rope_sections, type.tower == VisionFamily::kQwen3Vl};
  if (const auto rope = rope_with(text, kSections)) {
    const std::vector<int64_t> sizes = rope->integers(kSections);
    if (sizes.size() != sections.sizes.size()) {
      rope->fail(kSections, "has " + std::to_string(sizes.size()) + " numbers, expected 3");
    }
    std::ranges::copy(sizes, sections.sizes.begin());
  }
  const auto& [time, height, width] = sections.sizes;
  const int64_t pairs = model.rope().head_dim / 2;
  if (time < 1 || height < 1 || width < 1 || time + height + width != pairs) {
    text.fail(kSections, "of RoPE is " + std::to_string(time) + ", " + std::to_string(height) +
                             " and " + std::to_string(width) + ", expected a sum of " +
                             std::to_string(pairs) + " frequencies");
  }
  if (const auto rope = rope_with(text, kInterleaved);
      rope && rope->boolean(kInterleaved) != sections.interleaved) {
    rope->refuse(kInterleaved,
                 sections.interleaved ? "is false, expected true" : "is true, expected false");
  }
  return sections;
}

// Sets the sections of RoPE where the file names them: beside the text's fields or in text_config.
void write_sections(const RopeSections& sections, nlohmann::ordered_json& json) {
  std::vector<nlohmann::ordered_json*> places{&json};
  if (json.contains("text_config")) {
    places.push_back(&json["text_config"]);
  }
  for (nlohmann::ordered_json* fields : places) {
    for (const char* block : {"rope_scaling", "rope_parameters"}) {
      if (fields->contains(block) && fields->at(block).is_object() &&
          fields->at(block).contains(kSections)) {
        fields->at(block)[kSections] = sections.sizes;
      }
    }
  }
}

}  // namespace

VisionConfig read_vision_fields(const JsonObject& json, const JsonObject& text,
                                const MultimodalType& type, const ModelConfig& model) {
  const JsonObject vision = json.require(json.object(kVision), kVision);
  VisionConfig config;
  config.family = type.tower.value();
  read_sizes(vision, model, config);
  if (config.family == VisionFamily::kQwen2_5Vl) {
    read_windows(vision, config);
  }
  if (config.family == VisionFamily::kQwen3Vl) {
    read_positions(vision, config);
    read_deepstack(vision, type, model, config);
  }
  config.rope = read_sections(text, type, model);
  judge_unread_fields(vision);
  return config;
}

void write_vision_fields(const ModelConfig& model, const std::string& dtype,
                         nlohmann::ordered_json& json) {
  const VisionConfig& c = model.vision.value();
  const SizeFields fields = fields_of(c.family);
  nlohmann::ordered_json& vision = json[kVision];
  vision["depth"] = c.depth;
  vision[fields.width] = c.width;
  vision[fields.out] = model.hidden_size;
  vision["hidden_act"] = fields.activation;
  vision["num_heads"] = c.heads;
  vision["patch_size"] = c.patch;
  vision["temporal_patch_size"] = c.temporal_patch;
  vision["spatial_merge_size"] = c.merge;
  switch (c.family) {
    case VisionFamily::kQwen2Vl:
      break;  // mlp_ratio stays
    case VisionFamily::kQwen2_5Vl:
      vision["intermediate_size"] = c.mlp;
      vision["window_size"] = c.window;
      vision[kWindowBlocks] = c.full_blocks;
      break;
    case VisionFamily::kQwen3Vl:
      vision["intermediate_size"] = c.mlp;
      vision["num_position_embeddings"] = c.positions;
      if (!c.deepstack.empty() || vision.contains(kDeepstack)) {
        vision[kDeepstack] = c.deepstack;
      }
      break;
  }
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (vision.contains(key)) {
      vision[key] = dtype;
    }
  }
  write_sections(c.rope, json);
}

}  // namespace ringside::engine
