// Backward of a stage in two parts: the gradient of its input, for which the stage before waits,
// and the gradients of its weights, for which nobody waits.
//
// Between the parts each linear layer keeps its input and the gradient of its result. Their
// products are the second part. Weight gradients of other layers are small or cannot be had apart,
// and are computed in the first part. A unit gets its whole gradient at once: in the second part if
// it has linear layers, otherwise in the first (embedding, head, adapters). So its sum over
// micro-batches has the bits of backwards in one part.
//
// Source: Qi et al. 2023 (Zero Bubble).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <unordered_set>
#include <vector>

#include "engine/nn/weight_products.h"

namespace ringside::engine {

// Of one forward. Keeps its graph.
// Thread safety: none.
class SplitBackward {
 public:
  // end: what the forward returned. received: the leaf that it started from; undefined: it started
  // from token ids.
  SplitBackward(torch::autograd::Edge end, at::Tensor received);

  // The first part. gradient: of what the forward returned. Returns that of `received`, undefined
  // where none comes. Adds to the gradients of leaves without linear layers.
  // Collective over: as the forward's backward, without the sums of the other units' gradients.
  at::Tensor input_gradient(const at::Tensor& gradient);

  // The second part: adds to the gradients of the other leaves but `received`. Once, after the
  // first.
  // Collective over: the sums of their units' gradients.
  void weight_gradients();

 private:
  using Edge = torch::autograd::Edge;
  using Node = torch::autograd::Node;

  // A linear layer whose weights' gradients are left for the second part.
  struct Layer {
    std::shared_ptr<Node> node;
    WeightProducts products;
    at::Tensor dy;  // of its result; undefined: none came
  };
  // A gradient on its way to a leaf.
  struct Waiting {
    Edge edge;
    at::Tensor gradient;
  };
  // Where the graph is cut.
  struct Cut;

  Cut cut() const;
  std::unordered_set<const Node*> leaves_of_layers() const;

  Edge end_;
  at::Tensor received_;
  std::vector<Layer> layers_;
  std::vector<Waiting> waiting_;
};

}  // namespace ringside::engine
