// A parameter as a layer uses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/device/product_plan.h"

namespace ringside::engine {

// Low-rank additions to a weight: scale B A for each of its projections. Projections that share an
// input (q, k and v; gate and up) keep their A as rows of one matrix, for a single GEMM. Those of a
// weight of x experts are one part, with one A and B for each: a [x, rank, I], b [x, rows, rank].
struct LowRank {
  struct Part {
    int64_t row = 0;  // of the weight's output, the first that B adds to
    at::Tensor b;     // [rows, rank], in the compute dtype
    at::Tensor b_leaf;
  };
  at::Tensor a;  // [parts x rank, I], in the compute dtype
  at::Tensor a_leaf;
  std::vector<Part> parts;
  double scale = 1.0;  // alpha / rank
};

struct PackedWeight;
class Panels;

// A layer computes with `value` and sends the gradient to `leaf`. The leaf has the master dtype, so
// the gradient of a bf16 layer is not rounded to bf16 before micro-batches and ranks are summed.
// With one dtype for both they are the same tensor.
struct Weight {
  at::Tensor value;                            // in the compute dtype
  at::Tensor leaf;                             // in the master dtype; may require a gradient
  std::shared_ptr<const LowRank> low_rank;     // null: none; linear layers and
                                               // experts read it
  std::shared_ptr<const PackedWeight> packed;  // quantised, in place of value and leaf, which then
                                               // are undefined; only linear layers read it
  // The value packed for products without autograd; null: it is not. What reads the value may read
  // this instead.
  std::shared_ptr<const Panels> panels;
  ProductKernels kernel = {};  // of products of the value

  Weight() = default;
  // A weight whose values are used as they are stored.
  Weight(at::Tensor tensor)  // NOLINT(google-explicit-constructor)
      : value(tensor), leaf(std::move(tensor)) {}
  // The value to compute with, and the leaf that receives the gradient in the master dtype.
  Weight(at::Tensor compute_value, at::Tensor master_leaf)
      : value(std::move(compute_value)), leaf(std::move(master_leaf)) {}

  bool defined() const { return value.defined() || packed != nullptr; }
};

}  // namespace ringside::engine
