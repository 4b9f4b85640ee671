// Gradients of weights that can be computed apart from the rest of a backward, and after it: those
// of linear layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace ringside::engine {

// Weight gradients of a node of the autograd graph, which follow from the gradient dy of its result
// and from what it saved. They are computed outside autograd, with the bits that the node's own
// backward gives.
// Thread safety: as a backward of the node.
struct WeightProducts {
  // Numbers of those of the node's edges that take one.
  std::vector<std::size_t> (*outputs_of)(const torch::autograd::Node& node);
  // The gradient for such an edge.
  at::Tensor (*gradient)(torch::autograd::Node& node, std::size_t output, const at::Tensor& dy);
};

// Of a node that apply_linear() made for a weight without adapters, or apply_grouped_linear();
// empty for any other. Such a node computes no weight gradient in a backward that does not ask for
// it.
std::optional<WeightProducts> linear_products(const torch::autograd::Node& node);
std::optional<WeightProducts> grouped_linear_products(const torch::autograd::Node& node);

// Whether a number of such a node is not that of its input: of a weight or a bias, as value or as
// leaf.
inline bool leads_to_weight(std::size_t output) { return output > 0; }

}  // namespace ringside::engine
