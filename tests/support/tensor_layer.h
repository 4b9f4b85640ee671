// One decoder layer computed by tensor-parallel ranks and by one rank, from the same parameters.
//
// Shapes: s = tokens, E = hidden size.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/layers/decoder_layer.h"
#include "engine/layers/layer_pass.h"
#include "engine/runner/collator_options.h"
#include "engine/runner/sequence_parallel_attention.h"
#include "engine/runner/sequence_parallel_delta.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"

namespace ringside::test {

// Whole parameters by name, those of an expert behind its number. fp64.
using LayerParams = std::map<std::string, at::Tensor>;

// What a rank has of a parameter; a copy unless it has all of it.
inline at::Tensor own_piece(const at::Tensor& whole, const engine::TensorCut& cut, int64_t rank) {
  return cut.is_cut() ? engine::piece_of(whole, cut, rank) : whole;
}

// Adds a rank's piece to its place in the whole.
inline void add_piece(const at::Tensor& whole, at::Tensor piece, const engine::TensorCut& cut,
                      int64_t rank) {
  if (!cut.is_cut()) {
    whole.add_(piece.view_as(whole));
    return;
  }
  const int64_t dim = cut.along == engine::CutAlong::kRows ? 0 : 1;
  int64_t begin = 0;
  for (const sp::Range& range : cut.of_part[rank]) {
    whole.narrow(dim, range.begin, range.size()).add_(piece.narrow(dim, begin, range.size()));
    begin += range.size();
  }
}

// The names of the parameters that weight `slot` is made of, in order.
inline std::vector<std::string> names_of(const engine::WeightSpec& weight, int64_t experts) {
  std::vector<std::string> names;
  const bool of_each = weight.place == engine::WeightPlace::kExperts;
  for (int64_t x = 0; x < (of_each ? experts : 1); ++x) {
    for (const engine::ParamSpec& param : weight.params) {
      names.push_back((of_each ? std::to_string(x) + "." : "") + param.name);
    }
  }
  return names;
}

// All parameters of a layer, the same numbers in each call.
inline LayerParams random_params(const engine::ModelConfig& config, int64_t layer) {
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(3);
  LayerParams params;
  const engine::DecoderLayer whole(config, layer);
  for (const engine::WeightSpec& weight : whole.table().weights()) {
    for (const std::string& name : names_of(weight, config.experts.count)) {
      const std::string last = name.substr(name.find_first_not_of("0123456789."));
      for (const engine::ParamSpec& param : weight.params) {
        if (param.name == last || param.name == name) {
          std::vector<int64_t> shape = param.shape;
          if (weight.place == engine::WeightPlace::kStack) {
            shape.insert(shape.begin(), config.experts.count);
          }
          params[name] = at::randn(shape, random, at::kDouble) * 0.3;
        }
      }
    }
  }
  return params;
}

// A layer's weights on one tensor rank as leaves, and their gradients by parameter.
class LayerWeights {
 public:
  // The pieces that the layer's tensor rank has. `layer` must outlive the object.
  LayerWeights(const engine::DecoderLayer& layer, const LayerParams& params, int64_t experts)
      : table_(layer.table()), experts_(experts) {
    for (const engine::WeightSpec& weight : table_.weights()) {
      std::vector<at::Tensor> pieces;
      std::size_t i = 0;
      for (const std::string& name : names_of(weight, experts)) {
        const engine::TensorCut& cut = weight.params[i++ % weight.params.size()].cut;
        pieces.push_back(own_piece(params.at(name), cut, table_.place().rank).reshape({-1}));
      }
      std::vector<int64_t> shape = weight.shape;
      if (weight.place != engine::WeightPlace::kLayer) {
        shape.insert(shape.begin(), experts);
      }
      weights_.emplace_back(at::cat(pieces).view(shape).requires_grad_());
    }
  }

  std::vector<engine::Weight>& weights() { return weights_; }

  // Adds this rank's gradients.
  void add_gradients(LayerParams& sums) const {
    for (std::size_t slot = 0; slot < weights_.size(); ++slot) {
      const engine::WeightSpec& weight = table_.weights()[slot];
      const at::Tensor& grad = weights_[slot].leaf.grad();
      if (!grad.defined()) {
        continue;
      }
      int64_t begin = 0;
      std::size_t i = 0;
      for (const std::string& name : names_of(weight, experts_)) {
        const engine::TensorCut& cut = weight.params[i++ % weight.params.size()].cut;
        at::Tensor& sum = sums.at(name);
        std::vector<int64_t> shape = own_piece(sum, cut, table_.place().rank).sizes().vec();
        const int64_t numel = c10::multiply_integers(shape);
        add_piece(sum, grad.reshape({-1}).narrow(0, begin, numel).view(shape), cut,
                  table_.place().rank);
        begin += numel;
      }
    }
  }

 private:
  const engine::ParamTable& table_;
  int64_t experts_;
  std::vector<engine::Weight> weights_;
};

// Attention and passed states of packed documents in one process, with the heads of a tensor rank.
inline std::unique_ptr<engine::AttentionBackend> attention_of_rank(
    const engine::ModelConfig& config, const std::vector<int64_t>& lengths,
    const engine::TensorPlace& place) {
  const sp::SequenceLayout layout(lengths, 1, 1);
  const auto alone = sp::make_single_rank_communicator();
  engine::WindowContexts contexts;
  for (const int64_t window : engine::distinct_windows(config)) {
    sp::PlanOptions options;
    options.window = window;
    const auto plan = std::make_shared<const sp::AttentionPlan>(
        sp::plan_attention(layout, engine::head_shape(config, place), 0, options));
    contexts[window] = {sp::cpu_kernels()->prepare(plan, at::dtype(at::kDouble)), alone, alone};
  }
  std::shared_ptr<engine::RecurrentBackend> recurrent;
  if (const auto state = engine::passed_state(config, place)) {
    recurrent = std::make_shared<engine::SequenceParallelDelta>(
        std::make_shared<const engine::PreparedState>(
            std::make_shared<const sp::StatePlan>(sp::plan_state(layout, *state, 0)), at::kCPU),
        alone, alone);
  }
  return std::make_unique<engine::SequenceParallelAttention>(std::move(contexts), recurrent);
}

// Result and gradients of a layer.
struct LayerResult {
  at::Tensor y_sE, d_x_sE;
  LayerParams grads;
};

// A layer of a model, and its input of some documents.
struct LayerProblem {
  engine::ModelConfig config;
  int64_t layer = 0;
  std::vector<int64_t> lengths = {5, 1, 8};
  engine::MlpTiles tiles = {};

  int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
  // [s] int64, within each document.
  at::Tensor positions() const {
    std::vector<at::Tensor> runs;
    for (const int64_t length : lengths) {
      runs.push_back(at::arange(length, at::kLong));
    }
    return at::cat(runs);
  }
  // [s, E] that follow from the seed.
  at::Tensor random_rows(uint64_t seed) const {
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(seed);
    return at::randn({tokens(), config.hidden_size}, random, at::kDouble);
  }
};

// The part of one tensor rank; ranks: null for all of it. prepare: changes the weights of the pass.
// Collective over: ranks.
inline LayerResult run_layer(
    const LayerProblem& p, const LayerParams& params,
    const std::shared_ptr<sp::Communicator>& ranks,
    const std::function<void(const engine::DecoderLayer&, std::vector<engine::Weight>&)>& prepare =
        {}) {
  const engine::TensorPlace place =
      ranks == nullptr ? engine::TensorPlace{} : engine::TensorPlace{ranks->rank(), ranks->size()};
  const engine::DecoderLayer layer(p.config, p.layer, place);
  LayerWeights weights(layer, params, p.config.experts.count);
  std::vector<engine::Weight> of_pass = weights.weights();
  if (prepare) {
    prepare(layer, of_pass);
  }
  const auto attention = attention_of_rank(p.config, p.lengths, place);
  engine::Ropes ropes{
      engine::rope_tables(engine::rope_frequencies(p.config.rope()), p.positions(), at::kDouble)};
  engine::LayerPass pass{of_pass, ropes, *attention};
  pass.tiles = p.tiles;
  pass.rows = engine::even_rows(ranks, p.tokens());
  if (p.config.experts.router == engine::RouterKind::kSigmoid) {
    pass.experts.correction_X = at::zeros({p.config.experts.count}, at::kDouble);
  }
  const at::Tensor x = engine::own_rows(p.random_rows(1), pass.rows).clone().requires_grad_();
  const at::Tensor y = layer.forward(x, pass);
  (y * engine::own_rows(p.random_rows(2), pass.rows)).sum().backward();
  LayerResult result{y.detach(), x.grad(), {}};
  for (const auto& [name, param] : params) {
    result.grads[name] = at::zeros_like(param);
  }
  weights.add_gradients(result.grads);
  return result;
}

// The same by `count` tensor ranks, put together.
inline LayerResult run_layer_on_ranks(
    const LayerProblem& p, const LayerParams& params, int64_t count,
    const std::function<void(const engine::DecoderLayer&, std::vector<engine::Weight>&)>& prepare =
        {}) {
  std::vector<LayerResult> parts(count);
  sp::MeshShape shape;
  shape.tensor = count;
  run_ranks_in_memory(shape,
                      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
                        parts[mesh.rank()] =
                            run_layer(p, params, groups.tensors(sp::axes::kTensor), prepare);
                      },
                      {sp::axes::kTensor});
  std::vector<at::Tensor> y, d_x;
  LayerResult all = parts.front();
  for (const LayerResult& part : parts) {
    y.push_back(part.y_sE);
    d_x.push_back(part.d_x_sE);
    for (auto& [name, grad] : all.grads) {
      if (&part != &parts.front()) {
        grad.add_(part.grads.at(name));
      }
    }
  }
  all.y_sE = at::cat(y);
  all.d_x_sE = at::cat(d_x);
  return all;
}

// The largest difference of two results, relative to the largest number of each tensor; names the
// tensor.
struct LayerDifference {
  double worst = 0.0;
  std::string where;

  // Compares two tensors of one shape. NaN counts as the largest difference.
  void add(const std::string& name, const at::Tensor& a, const at::Tensor& b) {
    const double scale = a.numel() == 0 ? 1.0 : std::max(1e-3, a.abs().max().item<double>());
    const double difference = max_abs_diff(a, b) / scale;
    if (!(difference <= worst)) {
      worst = difference;
      where = name;
    }
  }
};

// Of results, input gradients and all weight gradients.
inline LayerDifference difference(const LayerResult& a, const LayerResult& b) {
  LayerDifference found;
  found.add("output", a.y_sE, b.y_sE);
  found.add("input gradient", a.d_x_sE, b.d_x_sE);
  for (const auto& [name, grad] : a.grads) {
    found.add(name, grad, b.grads.at(name));
  }
  return found;
}

}  // namespace ringside::test
