// AdamW on flat parameter buffers, with the same steps as torch.optim.AdamW.
//
// Source: Loshchilov and Hutter 2019.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/optim/moment_store.h"
#include "engine/params/param_unit.h"

namespace ringside::engine {

// AdamW's constants; the learning rate comes with each step.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  // Whether one-dimensional parameters (norms and biases) decay too, as with
  // torch.optim.AdamW(model.parameters()). transformers' Trainer leaves them out.
  bool decays_vectors = false;
};

// What happens to the gradients of a step, decided on the device without a host sync.
struct GradientScale {
  at::Tensor scale;  // fp64 []: multiplies the gradients; undefined = 1
  at::Tensor skip;   // fp32 []: 1 leaves weights and moments as they are; undefined = 0
};

// Keeps two moments a parameter in master dtype. The update runs where the master weights are.
// Thread safety: none.
class AdamW {
 public:
  // At least one unit; they must outlive the optimizer.
  // Throws: c10::Error on a beta outside [0, 1), a negative eps or a negative weight decay.
  AdamW(std::vector<ParamUnit*> units, AdamWOptions options);

  // Updates every unit from its gradient times gradients.scale. A unit without a gradient counts as
  // gradient zero. The gradient buffers hold the scaled gradients afterwards. A skipped step counts
  // as a step. Not collective. No host sync, unless the weights are in host memory.
  //   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr wd p
  //   p -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
  void step(double learning_rate, const GradientScale& gradients = {});

  // Updates done so far; t above is one more in the next step.
  int64_t step_count() const { return step_count_; }
  // Continues from `count` updates.
  // Throws: c10::Error when it is negative.
  void set_step_count(int64_t count);

  // "exp_avg.<parameter>" and "exp_avg_sq.<parameter>" for this rank's range of every parameter, as
  // views. Reading them saves the state; copying into them restores it.
  // Blocks: until moments that travel to host memory have arrived.
  std::vector<NamedSlice> named_state() const;
  // Those of one unit.
  // Blocks: as above.
  std::vector<NamedSlice> named_state(std::size_t unit) const;

 private:
  // GradientScale as the kernel takes it.
  struct Factors {
    at::Tensor scale;    // multiplies the gradients before the kernel; undefined = 1
    at::Tensor divisor;  // fp32; the kernel divides by it; undefined = 1
    at::Tensor skip;
  };
  Factors factors_on(c10::Device device, const GradientScale& gradients) const;
  void update(std::size_t unit, const Moments& moments, double learning_rate,
              const Factors& factors);

  std::vector<ParamUnit*> units_;
  AdamWOptions options_;
  MomentStore moments_;
  int64_t step_count_ = 0;
};

}  // namespace ringside::engine
