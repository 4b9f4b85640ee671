#include "tools/dry_run/small_model.h"

#include <algorithm>
#include <numeric>
#include <variant>
#include <vector>

namespace ringside::tools {
namespace {

constexpr int64_t kLayers = 2;
constexpr int64_t kHeadDim = 16;
constexpr int64_t kKeyValueHeads = 2;
constexpr int64_t kHidden = 64;
constexpr int64_t kIntermediate = 96;
constexpr int64_t kExperts = 8;
constexpr int64_t kExpertIntermediate = 32;
constexpr int64_t kEveryEos = 8;
constexpr int64_t kPatchPositions = 16;

// Of heads that RoPE turns in part, the same part.
int64_t shrunk_rotary_dim(const engine::ModelConfig& model, int64_t head_dim) {
  const int64_t turned = model.attention.rotary_dim * head_dim / model.head_dim;
  return model.attention.rotary_dim == 0 ? 0 : std::max<int64_t>(2, turned / 2 * 2);
}

// longrope has one factor for each pair of components that RoPE turns.
void cut_factors(engine::RopeScaling& scaling, int64_t head_dim) {
  auto* rope = std::get_if<engine::LongRope>(&scaling);
  if (rope == nullptr) {
    return;
  }
  for (std::vector<double>* factors : {&rope->short_factor, &rope->long_factor}) {
    factors->resize(std::min(factors->size(), static_cast<std::size_t>(head_dim / 2)));
  }
}

// The first layers, and then the first of each kind that is not among them.
std::vector<engine::BlockSpec> small_blocks(const engine::ModelConfig& model) {
  std::vector<engine::BlockSpec> blocks;
  for (int64_t layer = 0; layer < model.num_hidden_layers; ++layer) {
    const engine::BlockSpec block = model.block(layer);
    if (layer < kLayers || std::ranges::find(blocks, block) == blocks.end()) {
      blocks.push_back(block);
    }
  }
  return blocks;
}

// Keeps an expert a token fewer than there are, so that the router chooses. Without experts it
// changes nothing.
void shrink_experts(engine::ExpertsConfig& experts) {
  experts.count = std::min(experts.count, kExperts);
  // At least two experts a group, and about the same part of the groups in a token's choice.
  const int64_t groups = experts.groups;
  experts.groups = std::gcd(groups, std::max<int64_t>(1, experts.count / 2));
  experts.kept_groups = std::max<int64_t>(1, experts.kept_groups * experts.groups / groups);
  const int64_t choice = experts.kept_groups * experts.count / experts.groups;
  experts.per_token =
      std::min({experts.per_token, std::max<int64_t>(1, experts.count - 1), choice});
  experts.intermediate_size = std::min(experts.intermediate_size, kExpertIntermediate);
}

void set_end_ids(engine::ModelConfig& small, const std::optional<MadeUpIds>& ids) {
  std::vector<int64_t> ends = ids ? std::vector<int64_t>{ids->eos} : small.eos_token_ids;
  for (int64_t id = 0; id < small.vocab_size; id += kEveryEos) {
    ends.push_back(id);
  }
  small.eos_token_ids = std::move(ends);
}

// A tower of two blocks and at most one deepstack level, for patches of the model's size. head_dim:
// that the small model's RoPE turns.
void shrink_vision(engine::VisionConfig& vision, int64_t head_dim) {
  vision.depth = std::min(vision.depth, kLayers);
  vision.heads = 2;
  vision.width = vision.heads * kHeadDim;
  vision.mlp = kHidden;
  vision.full_blocks.assign(vision.full_blocks.empty() ? 0 : 1, vision.depth - 1);
  vision.deepstack.resize(std::min<std::size_t>(vision.deepstack.size(), 1));
  std::fill(vision.deepstack.begin(), vision.deepstack.end(), 0);
  vision.positions = std::min(vision.positions, kPatchPositions);
  const int64_t pairs = head_dim / 2;
  vision.rope.sizes = {pairs - pairs / 3 * 2, pairs / 3, pairs / 3};
}

// A size of a model and of the small one.
struct Change {
  const char* name;
  int64_t from, to;
  std::string text() const {
    return std::string(name) + " " + (from == to ? "" : std::to_string(from) + " -> ") +
           std::to_string(to);
  }
};

}  // namespace

engine::ModelConfig small_model(const engine::ModelConfig& model,
                                const std::optional<MadeUpIds>& ids) {
  engine::ModelConfig small = model;
  if (!model.vision) {  // a multimodal model's config.json keeps its form
    small.on_disk = {};
    small.on_disk.further = model.on_disk.further;
  }
  const int64_t queries_per_key = model.num_attention_heads / model.num_key_value_heads;
  const bool square = model.hidden_size == model.num_attention_heads * model.head_dim;
  small.blocks = small_blocks(model);
  small.num_hidden_layers = static_cast<int64_t>(small.blocks.size());
  small.num_key_value_heads = std::min(model.num_key_value_heads, kKeyValueHeads);
  small.num_attention_heads = small.num_key_value_heads * queries_per_key;
  small.head_dim = std::min(model.head_dim, kHeadDim);
  small.hidden_size =
      square ? small.num_attention_heads * small.head_dim : std::min(model.hidden_size, kHidden);
  small.intermediate_size = std::min(model.intermediate_size, kIntermediate);
  shrink_experts(small.experts);
  small.attention.rotary_dim = shrunk_rotary_dim(model, small.head_dim);
  cut_factors(small.rope_scaling, small.rope().head_dim);
  if (small.vision) {
    shrink_vision(*small.vision, small.rope().head_dim);
  }
  if (ids) {
    small.vocab_size = ids->vocab_size;
    small.bos_token_id.reset();
    small.pad_token_id.reset();
  }
  set_end_ids(small, ids);
  return small;
}

engine::ModelConfig made_up_model() {
  engine::ModelConfig model;
  model.model_type = "qwen3";
  model.vocab_size = 151936;
  model.hidden_size = 1024;
  model.intermediate_size = 3072;
  model.num_hidden_layers = 28;
  model.num_attention_heads = 16;
  model.num_key_value_heads = 8;
  model.head_dim = 128;
  model.max_position_embeddings = 40960;
  model.rope_theta = 1e6;
  model.tie_word_embeddings = true;
  model.attention.qk_norm = true;
  return model;
}

std::string describe_shrinking(const engine::ModelConfig& model, const engine::ModelConfig& small) {
  std::string text;
  for (const Change& change :
       {Change{"layers", model.num_hidden_layers, small.num_hidden_layers},
        {"hidden size", model.hidden_size, small.hidden_size},
        {"MLP", model.intermediate_size, small.intermediate_size},
        {"experts", model.experts.count, small.experts.count},
        {"query heads", model.num_attention_heads, small.num_attention_heads},
        {"key-value heads", model.num_key_value_heads, small.num_key_value_heads},
        {"head size", model.head_dim, small.head_dim},
        {"vocabulary", model.vocab_size, small.vocab_size}}) {
    // What the model has none of is left out.
    text += change.from == 0 ? "" : (text.empty() ? "" : ", ") + change.text();
  }
  return text;
}

}  // namespace ringside::tools
