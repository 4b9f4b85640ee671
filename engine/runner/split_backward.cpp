#include "engine/runner/split_backward.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace ringside::engine {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Of a linear layer with a trained weight; empty for any other node.
std::optional<WeightProducts> products_of(const Node& node) {
  auto products = linear_products(node);
  products = products ? products : grouped_linear_products(node);
  return products && !products->outputs_of(node).empty() ? products : std::nullopt;
}

// The one edge that a node has; null: it has none or several.
const Edge* only_edge(const Node& node) {
  const Edge* found = nullptr;
  for (const Edge& edge : node.next_edges()) {
    if (edge.is_valid()) {
      if (found != nullptr) {
        return nullptr;
      }
      found = &edge;
    }
  }
  return found;
}

bool is_leaf(const Node& node) {
  return std::ranges::none_of(node.next_edges(), [](const Edge& edge) { return edge.is_valid(); });
}

// The parts of a graph behind which there is one trained leaf alone, reached by one way: views of
// a unit. A gradient may wait before them.
class LeafWays {
 public:
  // received: the leaf that is not trained; null: none.
  explicit LeafWays(const Node* received) : received_(received) {}

  // The leaf of a way that begins at the node; null: it begins none.
  const Node* leaf_of(const Node& first) {
    std::vector<const Node*> way;
    const Node* node = &first;
    const Node* leaf = nullptr;
    for (;;) {
      if (const auto known = leaf_of_.find(node); known != leaf_of_.end()) {
        leaf = known->second;
        break;
      }
      way.push_back(node);
      if (is_leaf(*node)) {
        leaf = node == received_ ? nullptr : node;
        break;
      }
      const Edge* next = only_edge(*node);
      if (next == nullptr) {
        break;
      }
      node = next->function.get();
    }
    for (const Node* passed : way) {
      leaf_of_[passed] = leaf;
    }
    return leaf;
  }

 private:
  const Node* received_;
  std::unordered_map<const Node*, const Node*> leaf_of_;
};

using EdgeKey = std::pair<const Node*, uint32_t>;
EdgeKey key_of(const Edge& edge) { return {edge.function.get(), edge.input_nr}; }

variable_list execute(const edge_list& from, const variable_list& gradients, bool keeps_graph,
                      bool accumulates, const edge_list& wanted) {
  return torch::autograd::Engine::get_default_engine().execute(
      from, gradients, keeps_graph, /*create_graph=*/false, accumulates, wanted);
}

// Gradients by the leaf that they go to. A leaf gets its gradients at once, when the last one has
// come.
class Inboxes {
 public:
  void expect(const Edge& edge) { ++at(edge).to_come; }

  // An undefined gradient has come, too.
  void deliver(const Edge& edge, at::Tensor gradient) {
    Inbox& inbox = at(edge);
    if (gradient.defined()) {
      inbox.edges.push_back(edge);
      inbox.gradients.push_back(std::move(gradient));
    }
    if (--inbox.to_come == 0 && !inbox.edges.empty()) {
      const Inbox full = std::exchange(inbox, {});
      execute(full.edges, full.gradients, /*keeps_graph=*/false, /*accumulates=*/true, {});
    }
  }

 private:
  struct Inbox {
    int64_t to_come = 0;
    edge_list edges;
    variable_list gradients;
  };
  Inbox& at(const Edge& edge) { return inboxes_[ways_.leaf_of(*edge.function)]; }

  LeafWays ways_{nullptr};
  std::unordered_map<const Node*, Inbox> inboxes_;
};

}  // namespace

struct SplitBackward::Cut {
  std::vector<std::shared_ptr<Node>> layers;  // whose weights' gradients wait uncomputed
  edge_list waiting;                          // where gradients wait
};

SplitBackward::SplitBackward(torch::autograd::Edge end, at::Tensor received)
    : end_(std::move(end)), received_(std::move(received)) {}

SplitBackward::Cut SplitBackward::cut() const {
  LeafWays ways(received_.defined() ? torch::autograd::impl::gradient_edge(received_).function.get()
                                    : nullptr);
  Cut found;
  std::set<EdgeKey> waits;
  const auto wait_at = [&](const Edge& edge) {
    if (waits.insert(key_of(edge)).second) {
      found.waiting.push_back(edge);
    }
  };
  if (ways.leaf_of(*end_.function) != nullptr) {
    wait_at(end_);
    return found;
  }
  std::deque<std::shared_ptr<Node>> open{end_.function};
  std::unordered_set<const Node*> seen{end_.function.get()};
  while (!open.empty()) {
    const std::shared_ptr<Node> node = std::move(open.front());
    open.pop_front();
    const bool splits = products_of(*node).has_value();
    if (splits) {
      found.layers.push_back(node);
    }
    for (std::size_t i = 0; i < node->next_edges().size(); ++i) {
      const Edge& edge = node->next_edge(i);
      if (!edge.is_valid() || (splits && leads_to_weight(i))) {
        continue;
      }
      if (ways.leaf_of(*edge.function) != nullptr) {
        wait_at(edge);
      } else if (seen.insert(edge.function.get()).second) {
        open.push_back(edge.function);
      }
    }
  }
  // A weight that others read too has one gradient, and it waits whole.
  const auto is_shared = [&](const std::shared_ptr<Node>& layer) {
    bool shared = false;
    for (std::size_t i = 0; i < layer->next_edges().size(); ++i) {
      const Edge& edge = layer->next_edge(i);
      shared = shared || (edge.is_valid() && leads_to_weight(i) && waits.contains(key_of(edge)));
    }
    return shared;
  };
  for (auto layer = std::ranges::find_if(found.layers, is_shared); layer != found.layers.end();
       layer = std::ranges::find_if(found.layers, is_shared)) {
    for (std::size_t i = 0; i < (*layer)->next_edges().size(); ++i) {
      if ((*layer)->next_edge(i).is_valid() && leads_to_weight(i)) {
        wait_at((*layer)->next_edge(i));
      }
    }
    found.layers.erase(layer);
  }
  // In the order in which a backward comes to them.
  std::ranges::sort(found.layers, std::greater<>(),
                    [](const std::shared_ptr<Node>& node) { return node->sequence_nr(); });
  return found;
}

std::unordered_set<const Node*> SplitBackward::leaves_of_layers() const {
  LeafWays ways(nullptr);
  std::unordered_set<const Node*> leaves;
  for (const Layer& layer : layers_) {
    for (const std::size_t output : layer.products.outputs_of(*layer.node)) {
      leaves.insert(ways.leaf_of(*layer.node->next_edge(output).function));
    }
  }
  return leaves;
}

at::Tensor SplitBackward::input_gradient(const at::Tensor& gradient) {
  const Cut graph = cut();
  edge_list wanted;
  for (const std::shared_ptr<Node>& layer : graph.layers) {
    wanted.emplace_back(layer, 0);
  }
  wanted.insert(wanted.end(), graph.waiting.begin(), graph.waiting.end());
  if (received_.defined()) {
    wanted.push_back(torch::autograd::impl::gradient_edge(received_));
  }
  const variable_list found =
      execute({end_}, {gradient}, /*keeps_graph=*/true, /*accumulates=*/false, wanted);
  auto next = found.begin();
  for (const std::shared_ptr<Node>& layer : graph.layers) {
    layers_.push_back({layer, *products_of(*layer), *next++});
  }
  const std::unordered_set<const Node*> later = leaves_of_layers();
  LeafWays ways(nullptr);
  Inboxes complete;
  std::vector<Waiting> arrived;
  for (const Edge& edge : graph.waiting) {
    if (later.contains(ways.leaf_of(*edge.function))) {
      waiting_.push_back({edge, *next++});
    } else {
      complete.expect(edge);
      arrived.push_back({edge, *next++});
    }
  }
  for (Waiting& one : arrived) {
    complete.deliver(one.edge, std::move(one.gradient));
  }
  return received_.defined() ? *next : at::Tensor();
}

void SplitBackward::weight_gradients() {
  Inboxes inboxes;
  for (const Waiting& waiting : waiting_) {
    inboxes.expect(waiting.edge);
  }
  for (const Layer& layer : layers_) {
    for (const std::size_t output : layer.products.outputs_of(*layer.node)) {
      inboxes.expect(layer.node->next_edge(output));
    }
  }
  for (Waiting& waiting : std::exchange(waiting_, {})) {
    inboxes.deliver(waiting.edge, std::move(waiting.gradient));
  }
  for (Layer& layer : layers_) {
    const at::NoGradGuard no_grad;
    const at::Tensor dy = std::exchange(layer.dy, at::Tensor());
    for (const std::size_t output : layer.products.outputs_of(*layer.node)) {
      inboxes.deliver(
          layer.node->next_edge(output),
          dy.defined() ? layer.products.gradient(*layer.node, output, dy) : at::Tensor());
    }
  }
  layers_.clear();
  end_ = {};
}

}  // namespace ringside::engine
