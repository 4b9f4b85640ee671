// Figures of an optimizer step by name: collected on the device while the micro-batches run,
// fetched once, reduced over all ranks. Policy, critic and fine-tuning use the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "engine/device/device_sums.h"
#include "sp/mesh/communicator.h"

namespace ringside::rl {

// How a figure's numbers are combined over loss tokens, micro-batches and ranks.
enum class FigureRule { kSum, kMean, kMax };

// The figure that kMean divides by: the number of loss tokens.
inline constexpr const char* kTokens = "tokens";

// Figures of this rank, on the device. Nothing waits for them. A step's micro-batches give the same
// names by the same rules, on every rank; a rank without loss tokens gives empty tensors.
// Thread safety: none.
class Figures {
 public:
  // The total of all numbers. Shapes: any; the elements are added in fp64.
  void sum(const std::string& name, const at::Tensor& x) { add('s', name, x); }
  // The total over the total of kTokens. Shapes: x_n [n], one number a loss token.
  void mean(const std::string& name, const at::Tensor& x_n) { add('m', name, x_n); }
  // The largest number; 0 where no rank has one. Shapes: x_n [n], not negative.
  void max(const std::string& name, const at::Tensor& x_n);
  // sum(kTokens) of the entries of x_n.
  void count(const at::Tensor& x_n);

  // Everything collected, for ModelRunner::step(); leaves none.
  engine::DeviceSums take();

 private:
  void add(char rule, const std::string& name, const at::Tensor& x);

  engine::DeviceSums sums_;
};

// The figures of one or more optimizer steps over all ranks, on the host.
class StepFigures {
 public:
  StepFigures() = default;
  // of_rank: as ModelRunner::step() brings Figures::take() to the host; other names are left out.
  // Collective over: world.
  static StepFigures reduce(const engine::HostSums& of_rank, sp::Communicator& world);

  // Adds the figure of another optimizer step: sums add up, maxima are compared (NaN wins).
  StepFigures& operator+=(const StepFigures& other);
  // Sets what the rule combines: the total for kSum and kMean, the maximum for kMax.
  void set(const std::string& name, FigureRule rule, double value) {
    figures_[name] = {rule, value};
  }

  // The figure by its rule; 0 for one that nothing was collected for, and for a mean without
  // tokens.
  double operator[](const std::string& name) const;

 private:
  struct Figure {
    FigureRule rule = FigureRule::kSum;
    double value = 0.0;
  };
  std::map<std::string, Figure> figures_;
};

}  // namespace ringside::rl
