#include "engine/nn/tiles.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace ringside::engine {
namespace {

using torch::autograd::variable_list;

// Calls tile(begin, rows) for every tile, and once for no rows.
template <class Tile>
void for_each_tile(int64_t num_rows, int64_t tile_rows, Tile tile) {
  int64_t begin = 0;
  do {
    const int64_t rows = std::min(tile_rows, num_rows - begin);
    tile(begin, rows);
    begin += rows;
  } while (begin < num_rows);
}

// A node of its own, because a custom Function takes a fixed number of tensors.
class TilesBackward final : public torch::autograd::Node {
 public:
  TilesBackward(at::Tensor x_sE, int64_t tile_rows, std::vector<at::Tensor> leaves,
                RowFunction rows)
      : x_sE_(x_sE.detach()),
        tile_rows_(tile_rows),
        leaves_(std::move(leaves)),
        rows_(std::move(rows)) {
    add_next_edge(torch::autograd::impl::gradient_edge(x_sE));
    for (const at::Tensor& leaf : leaves_) {
      add_next_edge(torch::autograd::impl::gradient_edge(leaf));
    }
  }

  // The gradients of x and of the leaves.
  variable_list apply(variable_list&& grads) override {
    variable_list result(1 + leaves_.size());
    if (!grads[0].defined()) {
      return result;
    }
    result[0] = at::empty_like(x_sE_);
    for_each_tile(x_sE_.size(0), tile_rows_, [&](int64_t begin, int64_t rows) {
      const variable_list tile =
          tile_gradients(x_sE_.narrow(0, begin, rows), grads[0].narrow(0, begin, rows));
      result[0].narrow(0, begin, rows).copy_(tile[0]);
      for (std::size_t i = 1; i < tile.size(); ++i) {
        if (tile[i].defined()) {
          result[i] = result[i].defined() ? result[i].add_(tile[i]) : tile[i];
        }
      }
    });
    return result;
  }

  void release_variables() override {
    x_sE_.reset();
    leaves_.clear();
    rows_ = nullptr;
  }

 private:
  variable_list tile_gradients(const at::Tensor& x_tE, const at::Tensor& dy_tE) const {
    variable_list inputs{x_tE.detach().set_requires_grad(true)};
    inputs.insert(inputs.end(), leaves_.begin(), leaves_.end());
    at::Tensor y_tE;
    {
      const at::AutoGradMode enable_grad(true);
      y_tE = rows_(inputs.front());
    }
    return torch::autograd::grad({y_tE}, inputs, {dy_tE}, /*retain_graph=*/std::nullopt,
                                 /*create_graph=*/false, /*allow_unused=*/true);
  }

  at::Tensor x_sE_;
  int64_t tile_rows_;
  std::vector<at::Tensor> leaves_;
  RowFunction rows_;
};

void check_tiles(const at::Tensor& x_sE, int64_t tile_rows) {
  TORCH_CHECK(x_sE.dim() == 2 && tile_rows > 0, "tiles: rows [s, E] and a positive tile, got ",
              x_sE.sizes(), " and ", tile_rows);
}

}  // namespace

at::Tensor apply_in_tiles(const at::Tensor& x_sE, int64_t tile_rows, const RowFunction& rows) {
  check_tiles(x_sE, tile_rows);
  const at::NoGradGuard no_grad;
  at::Tensor y_sE = at::empty_like(x_sE);
  for_each_tile(x_sE.size(0), tile_rows, [&](int64_t begin, int64_t count) {
    y_sE.narrow(0, begin, count).copy_(rows(x_sE.narrow(0, begin, count)));
  });
  return y_sE;
}

at::Tensor gradient_path_in_tiles(const at::Tensor& x_sE, int64_t tile_rows,
                                  std::vector<at::Tensor> leaves, RowFunction rows) {
  check_tiles(x_sE, tile_rows);
  std::erase_if(leaves,
                [](const at::Tensor& leaf) { return !leaf.defined() || !leaf.requires_grad(); });
  at::Tensor y_sE;
  {
    const at::NoGradGuard no_grad;
    y_sE = at::zeros_like(x_sE);
  }
  const std::shared_ptr<TilesBackward> node(
      new TilesBackward(x_sE, tile_rows, std::move(leaves), std::move(rows)),
      torch::autograd::deleteNode);
  torch::autograd::create_gradient_edge(y_sE, node);
  return y_sE;
}

}  // namespace ringside::engine
