// AdamW on flat parameter buffers, with the same steps as torch.optim.AdamW. Muon may update some
// of the matrices in its place.
//
// Source: Loshchilov and Hutter 2019.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/optim/moment_store.h"
#include "engine/optim/muon.h"
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
  // How a model's runner updates the matrices of layers; nullopt: by AdamW, as all else.
  std::optional<MuonOptions> muon = {};
};

// What happens to the gradients of a step, decided on the device without a host sync.
struct GradientScale {
  at::Tensor scale;  // fp64 []: multiplies the gradients; undefined = 1
  at::Tensor skip;   // fp32 []: 1 leaves weights and moments as they are; undefined = 0
};

// Keeps two moments a parameter in master dtype, one of what Muon updates. The update runs where
// the master weights are. Thread safety: none.
class AdamW {
 public:
  // At least one unit; they must outlive the optimizer.
  // Throws: c10::Error on a beta outside [0, 1), a negative eps or a negative weight decay.
  // matrices: what options.muon updates. Throws: c10::Error as Muon, and when only one of the two
  // is given.
  AdamW(std::vector<ParamUnit*> units, AdamWOptions options,
        std::optional<MuonMatrices> matrices = std::nullopt);

  // Updates every unit from its gradient times gradients.scale. A unit without a gradient counts as
  // gradient zero. The gradient buffers hold the scaled gradients afterwards. A skipped step counts
  // as a step. Not collective without Muon; with it as Muon::update(). No host sync, unless the
  // weights are in host memory.
  //   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr wd p
  //   p -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
  void step(double learning_rate, const GradientScale& gradients = {});

  // Updates done so far; t above is one more in the next step.
  int64_t step_count() const { return step_count_; }
  // Continues from `count` updates.
  // Throws: c10::Error when it is negative.
  void set_step_count(int64_t count);

  // "exp_avg.<parameter>" and, unless Muon updates it, "exp_avg_sq.<parameter>" for this rank's
  // range of every parameter, as views. Reading them saves the state; copying into them restores
  // it. Blocks: until moments that travel to host memory have arrived.
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
  void update_matrices(std::size_t unit, const Moments& moments, double learning_rate,
                       const Factors& factors);
  bool is_muons(std::size_t unit, std::size_t param) const;
  // Of what AdamW updates: slices of a buffer of flat()'s layout, and of the second moments.
  std::vector<NamedSlice> slices_of(std::size_t unit, const at::Tensor& buffer) const;
  std::vector<NamedSlice> second_slices(std::size_t unit, const at::Tensor& exp_avg_sq) const;
  // Elements of the second moments of each unit.
  std::vector<int64_t> second_elements() const;

  std::vector<ParamUnit*> units_;
  AdamWOptions options_;
  std::optional<Muon> muon_;
  MomentStore moments_;
  int64_t step_count_ = 0;
};

}  // namespace ringside::engine
