#include "engine/runner/memory_estimate.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "engine/layers/decoder_layer.h"
#include "engine/models/decoder.h"
#include "engine/optim/muon.h"
#include "engine/runner/layers_memory.h"
#include "engine/vision/vision_cost.h"

namespace ringside::engine {
namespace {

struct KeptInput {
  int64_t device = 0, host = 0;
  int64_t split = 0;   // more, between the parts of a backward in two
  int64_t shared = 0;  // whatever the number of inputs
};

std::map<std::vector<int64_t>, int64_t> elements_of_shapes(const std::vector<ParamSpec>& specs) {
  std::map<std::vector<int64_t>, int64_t> elements;
  for (const ParamSpec& spec : specs) {
    elements[spec.shape] += spec.numel();
  }
  return elements;
}

// Elements that a rank computes with, its own experts among them.
struct RankElements {
  int64_t dense_layer = 0, experts_layer = 0, layer_parameters = 0;  // of the largest layer
  std::vector<int64_t> elements_of_layer;
  // Of all layers, and of all that the rank has.
  int64_t dense = 0, dense_layers = 0, experts = 0, parameters = 0, head_parameters = 0;
  int64_t whole = 0;  // of `dense`: those that several tensor ranks use whole
  // Of `dense`, `whole` and `experts`: matrices of layers.
  int64_t matrices = 0, whole_matrices = 0, expert_matrices = 0;
  // The largest matrix, the most of one shape in a layer, and its largest unit on all tensor ranks
  // together; the largest Gram matrix as a part of its matrix.
  int64_t largest_matrix = 0, alike = 0, whole_unit = 0;
  double gram_share = 0.0;
  // Of a tower: its parts that are constant beside trained ones, which are not in `dense`; its
  // units.
  int64_t constant = 0, patch_embedding = 0, block = 0, merger = 0, mergers = 0;

  // specs: of a layer without its experts.
  void add_matrices(const std::vector<ParamSpec>& specs, int64_t tensor_ranks) {
    std::vector<ParamSpec> found;
    std::ranges::copy_if(specs, std::back_inserter(found),
                         [](const ParamSpec& spec) { return spec.shape.size() == 2; });
    const OwnElements own = own_elements(found, tensor_ranks);
    matrices += own.all();
    whole_matrices += own.whole;
    for (const auto& [shape, of_shape] : elements_of_shapes(found)) {
      add_alike(shape, of_shape);
    }
    whole_unit = std::max(whole_unit, elements(specs));
  }
  // specs: of a unit of a layer's experts. mine: experts of the rank.
  void add_expert_matrices(const std::vector<ParamSpec>& specs, const ExpertsConfig& config,
                           int64_t mine) {
    const bool stack = config.kind == ExpertKind::kClamped;
    for (const auto& [shape, of_shape] : elements_of_shapes(specs)) {
      if (shape.size() == (stack ? 3 : 2)) {
        add_alike(shape, of_shape / config.count * mine);
        expert_matrices += of_shape / config.count * mine;
      }
    }
  }
  // shape: its last two dims are those of a matrix.
  void add_alike(const std::vector<int64_t>& shape, int64_t of_this_shape) {
    const int64_t rows = shape[shape.size() - 2], columns = shape.back();
    largest_matrix = std::max(largest_matrix, rows * columns);
    alike = std::max(alike, of_this_shape);
    gram_share = std::max(gram_share, static_cast<double>(std::min(rows, columns)) /
                                          static_cast<double>(std::max(rows, columns)));
  }

  void add_tower_unit(const UnitSpecs& unit, int64_t of_unit) {
    if (unit.role == UnitRole::kVisionMerger) {
      merger = std::max(merger, of_unit);
      mergers += of_unit;
    } else if (unit.role == UnitRole::kVision) {
      // The first one embeds patches; the blocks are alike.
      (patch_embedding == 0 ? patch_embedding : block) = of_unit;
    }
  }
};

// Of a stage with these layers.
RankElements count_elements(const ModelConfig& c, const PassShape& p, const Stage& stage,
                            const std::vector<DecoderLayer>& layers) {
  RankElements e;
  const int64_t words = share(c.vocab_size, p.tensor_ranks);
  const int64_t mine = share(c.experts.count, p.state.expert_ranks);
  int64_t all_layers = 0;  // elements on all tensor and expert ranks
  for (const DecoderLayer& layer : layers) {
    int64_t of_all = 0;  // of all experts
    for (const std::vector<ParamSpec>& specs : layer.experts_specs()) {
      of_all += elements(specs);
      e.add_expert_matrices(specs, c.experts, mine);
    }
    e.add_matrices(layer.specs(), p.tensor_ranks);
    const int64_t experts = of_all > 0 ? of_all / c.experts.count * mine : 0;
    all_layers += elements(layer.specs()) + of_all;
    e.experts += experts;
    const OwnElements own = own_elements(layer.specs(), p.tensor_ranks);
    e.dense_layers += own.all();
    e.whole += own.whole;
    e.elements_of_layer.push_back(own.all() + experts);
  }
  const std::size_t largest = largest_layer(layers);
  e.layer_parameters = e.elements_of_layer[largest];
  e.dense_layer = own_elements(layers[largest].specs(), p.tensor_ranks).all();
  e.experts_layer = e.layer_parameters - e.dense_layer;
  if (stage.layers.empty()) {
    e.experts = e.dense_layers = all_layers = e.whole = 0;
    e.matrices = e.whole_matrices = e.expert_matrices = e.largest_matrix = e.whole_unit = 0;
  }
  const int64_t table = c.vocab_size * c.hidden_size;
  e.head_parameters = stage.scores ? words * c.hidden_size : 0;
  // Beside the layers there are the embedding and the head, cut, and whole parameters.
  int64_t ends = 0, others = -all_layers;
  bool further = false;  // the units from that of the further layer on
  for (const UnitSpecs& unit : unit_specs(c, stage)) {
    further |= unit.role == UnitRole::kFurther;
    const bool is_end = unit.role == UnitRole::kEmbedding || unit.role == UnitRole::kHead;
    ends += is_end ? table : 0;
    const int64_t of_unit = elements(unit.specs);
    const bool further_experts = further && unit.role == UnitRole::kExperts;
    e.experts += further_experts ? of_unit / c.experts.count * mine : 0;
    const bool of_tower = unit.role == UnitRole::kVision || unit.role == UnitRole::kVisionMerger;
    const bool is_constant =
        of_tower && !p.adapters.has_value() && !WeightStorage{.vision = p.vision}.trains(unit.role);
    others += is_end || is_constant || further_experts ? 0 : of_unit;
    e.constant += is_constant ? of_unit : 0;
    e.add_tower_unit(unit, of_unit);
  }
  e.whole += p.tensor_ranks > 1 ? others : 0;
  e.dense = e.dense_layers + ends / c.vocab_size * words + others;
  e.parameters = e.dense + e.experts;
  return e;
}

// Elements that a rank stores of so many: `whole` are those of `dense` that every tensor rank uses
// whole, which are sharded over these ranks too.
int64_t stored_elements(const PassShape& p, int64_t dense, int64_t whole, int64_t experts) {
  const int64_t of_whole = p.state.shard_ranks > 1 ? p.state.shard_ranks * p.tensor_ranks : 1;
  return share(dense - whole, p.state.shard_ranks) + share(whole, of_whole) +
         share(experts, p.state.expert_shard_ranks);
}

// Sizes of one estimate. Bytes, unless said otherwise.
class Sizes {
 public:
  Sizes(const ModelConfig& config, const ComputeContext& context, const PassShape& shape)
      : c_(config), p_(shape) {
    const auto bytes = [](at::ScalarType dtype) {
      return static_cast<int64_t>(c10::elementSize(dtype));
    };
    compute_ = bytes(context.compute);
    master_ = bytes(context.master);
    directions_ = bytes(direction_dtype(context));
    sums_ = std::max<int64_t>(4, compute_);
    casts_ = context.compute != context.master && !shape.adapters;  // frozen ones are cast once
    stage_ = shape.stage.value_or(whole_stage(config));
    if (shape.adapters) {
      adapters_ = adapter_memory(config, stage_, shape, compute_, master_);
    }
    // A stage without layers counts with one of the model's. Tensor rank 0 has the most heads and
    // columns.
    const int64_t first = std::min(stage_.layers.begin, config.num_hidden_layers - 1);
    std::vector<DecoderLayer> layers;
    layers.reserve(stage_.layers.size() + 1);
    for (int64_t i = first; i < std::max(first + 1, stage_.layers.end); ++i) {
      layers.emplace_back(config, i, TensorPlace{0, shape.tensor_ranks});
    }
    layers_.emplace(config, layers, shape, context, adapters_ ? &*adapters_ : nullptr);
    if (config.vision && stage_.embeds) {
      const VisionTraining training =
          frozen() || !shape.trains ? VisionTraining::kNothing : shape.vision;
      tower_ =
          vision_cost(config, {shape.patches, training, layers_->recomputes(), compute_, sums_});
    }
    e_ = count_elements(config, shape, stage_, layers);
  }

  MemoryEstimate at_head() const {
    MemoryEstimate m = states();
    m.gradients = accumulated_gradients();
    if (!stage_.scores) {
      m.gathered =
          keeps_gathered() ? kept_gathered() : saved_casts(layers()) + tower_weights(tower_.blocks);
      m.activations =
          tables() + layers_->kept_on_device(layers() - 1, 1) + messages() + of_images();
      return m;
    }
    const int64_t head_weights = weights_are_made() ? e_.head_parameters * compute_ : 0;
    m.gathered = keeps_gathered() ? kept_gathered()
                                  : saved_casts(layers()) + tower_weights(tower_.blocks) +
                                        head_weights + (sharded() ? made_layer() * compute_ : 0);
    m.activations =
        tables() + layers_->kept_on_device(layers() - 1, 1) + tail() + messages() + of_images();
    const int64_t rows = std::min(p_.logit_rows, p_.entries);
    m.logits = rows * share(c_.vocab_size, p_.tensor_ranks) * p_.logit_bytes +
               (frozen() ? 0 : e_.head_parameters * sums_) + p_.entries * c_.hidden_size * compute_;
    return m;
  }

  // In the backward of a layer, with `below` layers whose activations are still kept.
  MemoryEstimate in_layer(int64_t below) const {
    MemoryEstimate m = states();
    const int64_t done = layers() - 1 - below;  // layers whose gradients exist
    if (frozen()) {
      m.gradients = accumulated_gradients() + adapters_->masters * (done + 1) / layers();
    } else {
      m.gradients = layer_gradients(done);
    }
    const int64_t layers_of_weights = keeps_gathered()        ? 0
                                      : sharded()             ? 2
                                      : layers_->recomputes() ? 1
                                                              : 0;
    m.gathered = keeps_gathered()
                     ? kept_gathered()
                     : saved_casts(below + 1) + tower_weights(tower_.blocks) +
                           (weights_are_made() ? layers_of_weights * made_layer() * compute_ : 0);
    m.activations = tables() + layers_->kept_on_device(below, 2) + messages() + of_images();
    m.working = layers_->channels_moment(below);
    const int64_t buffers = layers_->buffers(below);
    if (layers_->tokens_moment(below) + buffers > m.working) {
      m.working = layers_->tokens_moment(below);
      m.communication = buffers;
    }
    return m;
  }

  // In Muon's update of the largest unit of a layer; nothing without Muon.
  MemoryEstimate in_update() const {
    if (!p_.state.muon || !p_.trains || layers() == 0) {
      return {};
    }
    MemoryEstimate m = states();
    const int64_t unit = std::max(e_.dense_layer, e_.experts_layer);
    const int64_t own = share(unit, p_.state.shard_ranks);
    // A rank makes the matrices that it has elements of, two of them in part.
    const int64_t mine = sharded() ? own + 2 * e_.largest_matrix : unit;
    const int64_t batch =
        std::min({mine, e_.alike, std::max(kMuonBatchElements, e_.largest_matrix)});
    m.gradients = p_.state.masters_on_host ? 0 : stored() * master_;
    m.gathered = keeps_gathered() ? kept_gathered() : 0;
    // Of this rank, gathered over the shard, and over tensor ranks; then of a batch the stacked
    // ones, two iterates and two Gram matrices.
    m.working = directions_ *
                (2 * own + (sharded() ? unit : 0) + (p_.tensor_ranks > 1 ? 2 * e_.whole_unit : 0) +
                 3 * batch + 2 * static_cast<int64_t>(e_.gram_share * batch));
    return m;
  }

  // In the forward of the vision tower, before anything of the micro-batch is kept. What a trained
  // one keeps there is still kept in its backward.
  MemoryEstimate in_tower_forward() const {
    MemoryEstimate m = states();
    m.gradients = accumulated_gradients();
    m.gathered = keeps_gathered() ? kept_gathered() : 0;
    m.activations = tables();
    m.working = tower_.forward + tower_.kept_in_forward();
    return m;
  }

  // In the backward of the tower's mergers, with all of its blocks, or of a block with `below`
  // others: the layers' activations are gone, their gradients exist.
  MemoryEstimate in_mergers() const {
    MemoryEstimate m = in_tower(tower_.blocks, /*elements=*/e_.merger);
    m.activations += tower_.kept();
    m.working = tower_.merger_flow + 2 * merged_rows_bytes();
    return m;
  }
  MemoryEstimate in_block(int64_t below) const {
    MemoryEstimate m = in_tower(below + 1, e_.block);
    m.activations += tower_.kept_in(below);
    m.working = tower_.block_flow + tower_.recomputed;
    if (tower_.mergers_before(below) > 0) {  // the gradients of their rows wait
      m.working += merged_rows_bytes();
    }
    return m;
  }
  // Of a tower; zeros without.
  const VisionCost& tower() const { return tower_; }

  // What a stage holds of an input between its forward and its backward, on the device and in host
  // memory.
  KeptInput kept_of_input() const {
    const int64_t of_layers = layers_->kept(0, layers());
    return {(p_.activations.offload ? 0 : of_layers) + (stage_.scores ? tail() : 0),
            p_.activations.offload ? of_layers : 0,
            // Adapters leave no product for later.
            frozen() ? 0 : layers_->linear_results(0, layers()), tables() + messages()};
  }

  Sizes(const Sizes&) = delete;
  Sizes& operator=(const Sizes&) = delete;

  int64_t layers() const { return stage_.layers.size(); }

 private:
  // Of images, between the tower's forward and its backward. The decoder's forward has the rows of
  // this rank's tokens to its end, and where they are trained its backward too. The rows of a whole
  // constant tower are kept for other passes.
  int64_t of_images() const {
    const bool keeps_rows = !tower_.trains_mergers && !sharded();
    return tower_.kept() +
           (share(p_.image_rows, p_.tensor_ranks) + (keeps_rows ? p_.kept_image_rows : 0)) *
               tower_.row;
  }
  // Weights of the tower, cast or gathered, that its backward keeps. A gathered unit whose input
  // has no gradient is not gathered again.
  int64_t tower_weights(int64_t blocks) const {
    if (!casts_ && !sharded()) {
      return 0;
    }
    const bool all = tower_.blocks > 0, keeps_blocks = !layers_->recomputes();
    const int64_t of_blocks = all && keeps_blocks && !sharded() ? blocks * e_.block : 0;
    const int64_t of_mergers = tower_.trains_mergers && (!all || !sharded()) ? e_.mergers : 0;
    return (of_blocks + of_mergers + (all ? e_.patch_embedding : 0)) * compute_;
  }
  // Gradients of the rows that this rank encodes.
  int64_t merged_rows_bytes() const {
    return p_.patches / c_.vision->patches_of_token() * tower_.row;
  }

  // elements: of the unit whose backward runs.
  MemoryEstimate in_tower(int64_t blocks, int64_t elements) const {
    MemoryEstimate m = states();
    const int64_t later = p_.accumulates || sharded() ? 0 : blocks * e_.block + e_.patch_embedding;
    const bool whole = !sharded() || p_.state.zero_stage == 1;
    m.gradients = p_.state.masters_on_host ? elements * master_
                                           : ((whole ? e_.parameters - later : stored()) +
                                              (p_.accumulates || sharded() ? elements : 0)) *
                                                 master_;
    m.gathered = keeps_gathered()
                     ? kept_gathered()
                     : tower_weights(blocks) +
                           (weights_are_made() ? (sharded() ? 2 : 1) * elements * compute_ : 0);
    m.activations = tables();
    return m;
  }

  // Gradients of trained weights, with those of `done` layers.
  int64_t layer_gradients(int64_t done) const {
    int64_t gradients = p_.accumulates || sharded()
                            ? accumulated_gradients()
                            : std::accumulate(e_.elements_of_layer.end() - done,
                                              e_.elements_of_layer.end(), int64_t{0}) *
                                  master_;
    // The head's gradient: of tied weights it waits for the embedding's.
    if (!p_.accumulates || c_.tie_word_embeddings) {
      gradients += e_.head_parameters * (sharded() && !c_.tie_word_embeddings ? 0 : master_);
    }
    if (sharded()) {
      gradients += e_.layer_parameters * master_;  // whole, while it is summed
    }
    return gradients;
  }

  bool frozen() const { return adapters_.has_value(); }
  // A frozen base and the adapters.
  MemoryEstimate frozen_states() const {
    const StateShape& state = p_.state;
    MemoryEstimate m;
    // Experts are never packed: a model that has them is refused, with its size as if they were
    // not.
    const int64_t base = adapters_->packed_layers
                             ? (share(e_.dense - e_.dense_layers, state.shard_ranks) +
                                share(e_.experts, state.expert_shard_ranks)) *
                                       compute_ +
                                   *adapters_->packed_layers
                             : stored() * compute_;
    (state.parameters_on_host ? m.host : m.weights) += base;
    m.weights += adapters_->masters;
    if (p_.trains) {
      const bool off = state.moments_on_host || state.masters_on_host;
      (off ? m.host : m.moments) += 2 * adapters_->masters;
    }
    return m;
  }
  bool sharded() const { return p_.state.shard_ranks > 1; }
  bool keeps_gathered() const { return sharded() && p_.state.zero_stage < 3; }
  // Whether a weight for use is a tensor beside the stored one.
  bool weights_are_made() const { return casts_ || sharded() || p_.state.parameters_on_host; }
  // Elements that this rank stores.
  int64_t stored() const { return stored_elements(p_, e_.dense, e_.whole, e_.experts); }
  // Whether this rank's experts are gathered for use.
  bool experts_sharded() const { return p_.state.expert_shard_ranks > 1; }
  // Elements of a layer that are made for use, where weights are.
  int64_t made_layer() const {
    return e_.dense_layer + (experts_sharded() || casts_ ? e_.experts_layer : 0);
  }
  int64_t kept_gathered() const {
    return (e_.dense + e_.constant + (experts_sharded() ? e_.experts : 0)) * compute_ +
           (experts_sharded() || !casts_ ? 0 : e_.experts_layer * compute_);
  }

  // Weights, moments and host memory, which do not depend on the moment.
  MemoryEstimate states() const {
    if (frozen()) {
      return with_host_activations(frozen_states());
    }
    const StateShape& state = p_.state;
    MemoryEstimate m;
    const int64_t masters = stored() * master_;
    if (state.masters_on_host) {
      // The device keeps this rank's part in the compute dtype.
      m.weights = state.parameters_on_host || keeps_gathered() ? 0 : stored() * compute_;
      m.host += masters;
    } else {
      (state.parameters_on_host ? m.host : m.weights) += masters;
    }
    const int64_t constants =
        share(e_.constant, sharded() ? state.shard_ranks * p_.tensor_ranks : 1) * compute_;
    (state.parameters_on_host ? m.host : m.weights) += constants;
    if (p_.trains) {
      const bool off = state.moments_on_host || state.masters_on_host;
      // Muon does without the second moment of matrices.
      const int64_t one_moment =
          state.muon ? stored_elements(p_, e_.matrices, e_.whole_matrices, e_.expert_matrices) : 0;
      (off ? m.host : m.moments) += 2 * masters - one_moment * master_;
      m.host += state.masters_on_host ? masters : 0;  // gradients
    }
    return with_host_activations(m);
  }
  MemoryEstimate with_host_activations(MemoryEstimate m) const {
    if (p_.activations.offload) {
      m.host_activations = layers_->kept(0, layers() - 1);
      m.host += m.host_activations;
    }
    return m;
  }

  int64_t accumulated_gradients() const {
    if (frozen()) {
      return p_.accumulates ? adapters_->masters : 0;
    }
    if (p_.state.masters_on_host) {
      return e_.layer_parameters * master_;
    }
    if (!p_.accumulates) {
      return 0;
    }
    const bool whole = !sharded() || p_.state.zero_stage == 1;
    return (whole ? e_.parameters : stored()) * master_;
  }

  // Casts of layers' weights that their backward keeps.
  int64_t saved_casts(int64_t layers_kept) const {
    if (!casts_ || layers_->recomputes()) {
      return 0;
    }
    return layers_kept * compute_ *
           ((sharded() ? 0 : e_.dense_layer) + (experts_sharded() ? 0 : e_.experts_layer));
  }

  // Tables that all layers share: of RoPE, of states.
  int64_t tables() const { return p_.tokens * c_.rope().head_dim * compute_ + layers_->tables(); }
  // The final norm's input and output, and the rows of the entries.
  int64_t tail() const {
    // What the layer that predicts a further token keeps: of the layer, of what joins its input,
    // and of its entries.
    const bool has_further = p_.trains && layers() > 0 && stage_.predicts_further(c_);
    const int64_t further =
        has_further
            ? layers_->kept(layers() - 1, layers()) +
                  (6 * p_.own_rows() + 2 * p_.entries) * c_.hidden_size * compute_ + p_.entries * 24
            : 0;
    return p_.own_rows() * (2 * c_.hidden_size * compute_ + sums_) +
           (share(p_.entries, p_.tensor_ranks) + (p_.tensor_ranks > 1 ? p_.entries : 0)) *
               c_.hidden_size * compute_ +
           p_.entries * 24 + further;
  }

  // In a pipeline: hidden states and gradients that arrive and leave.
  int64_t messages() const { return p_.stage ? 4 * p_.own_rows() * c_.hidden_size * compute_ : 0; }

  const ModelConfig& c_;
  const PassShape& p_;
  Stage stage_;
  int64_t compute_ = 0, master_ = 0, sums_ = 0, directions_ = 0;  // bytes of a number
  bool casts_ = false;                                            // weights are cast for use
  std::optional<AdapterMemory> adapters_;                         // empty: all weights are trained
  std::optional<LayersMemory> layers_;
  RankElements e_;
  VisionCost tower_;
};

void take_larger(MemoryEstimate& largest, const MemoryEstimate& moment) {
  if (moment.peak() > largest.peak()) {
    largest = moment;
  }
}

MemoryEstimate largest_moment(const Sizes& sizes) {
  MemoryEstimate largest = sizes.at_head();
  for (int64_t below = 0; below < sizes.layers(); ++below) {
    take_larger(largest, sizes.in_layer(below));
  }
  take_larger(largest, sizes.in_update());
  if (sizes.tower().forward > 0) {
    take_larger(largest, sizes.in_tower_forward());
  }
  if (sizes.tower().trains_mergers) {
    take_larger(largest, sizes.in_mergers());
  }
  for (int64_t below = 0; below < sizes.tower().blocks; ++below) {
    take_larger(largest, sizes.in_block(below));
  }
  return largest;
}

// The part that only the stage has whose backward runs.
void take_backward(MemoryEstimate& all, const MemoryEstimate& of_stage) {
  all.activations = of_stage.activations;
  all.working = of_stage.working;
  all.logits = of_stage.logits;
  all.communication = of_stage.communication;
}

}  // namespace

MemoryEstimate estimate_memory(const ModelConfig& config, const ComputeContext& context,
                               const PassShape& shape) {
  return largest_moment(Sizes(config, context, shape));
}

MemoryEstimate estimate_memory(const ModelConfig& config, const ComputeContext& context,
                               PassShape shape, const RankStages& rank) {
  MemoryEstimate states;
  std::vector<MemoryEstimate> of_stages;
  std::vector<KeptInput> kept;
  for (const Stage& stage : rank.stages) {
    shape.stage = stage;
    const Sizes sizes(config, context, shape);
    kept.push_back(sizes.kept_of_input());
    const MemoryEstimate& one = of_stages.emplace_back(largest_moment(sizes));
    states.weights += one.weights;
    states.moments += one.moments;
    states.gradients += one.gradients;
    states.gathered += one.gathered;
    states.host += one.host - one.host_activations;
    states.host_activations += one.host_activations;
  }
  MemoryEstimate largest;
  int64_t most_on_host = 0;
  for (const sp::HeldInputs& moment : rank.moments) {
    MemoryEstimate now = states;
    take_backward(now, of_stages[moment.runs]);
    int64_t on_host = of_stages[moment.runs].host_activations;
    const bool splits = moment.split[moment.runs] > 0;
    if (splits) {  // the first part frees nothing of its input
      now.activations = kept[moment.runs].shared;
    }
    for (std::size_t s = 0; s < kept.size(); ++s) {
      const bool runs = static_cast<int64_t>(s) == moment.runs;
      const int64_t others = moment.of_stages[s] - (runs && !splits ? 1 : 0);
      now.activations += others * kept[s].device + moment.split[s] * kept[s].split;
      on_host += others * kept[s].host;
    }
    most_on_host = std::max(most_on_host, on_host);
    if (now.peak() > largest.peak()) {
      largest = now;
    }
  }
  largest.host += most_on_host;
  return largest;
}

}  // namespace ringside::engine
