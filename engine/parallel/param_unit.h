// A layer's parameters in one flat buffer: the unit that model, optimizer, gradient sync, checkpoint and
// weight publisher share. The flat master buffer is the only autograd leaf; materialize() casts and splits it,
// so the gradient of the whole unit arrives flat, summed in master precision.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace ringside::engine {

// One named tensor inside the flat buffer. `name` is the Hugging Face name.
struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel() const;
};

class ParamUnit {
 public:
  // The flat buffer is zero-initialised; loading or initialisation fills it through view(). master_dtype: kFloat or kDouble.
  ParamUnit(std::string name, std::vector<ParamSpec> specs, at::ScalarType master_dtype);

  const std::string& name() const { return name_; }
  const std::vector<ParamSpec>& specs() const { return specs_; }

  // [numel] master buffer, the autograd leaf (requires_grad is set).
  at::Tensor& flat() { return flat_; }
  const at::Tensor& flat() const { return flat_; }

  // [numel] accumulated gradient in master dtype; zeros before the first backward.
  at::Tensor grad() const;
  void zero_grad();

  // The tensors of specs() in order, cast to compute_dtype; differentiable towards flat().
  std::vector<at::Tensor> materialize(at::ScalarType compute_dtype) const;

  // A view of parameter i's master values with its shape, outside autograd: for load, save and publish.
  at::Tensor view(std::size_t i) const;

 private:
  std::string name_;
  std::vector<ParamSpec> specs_;
  at::Tensor flat_;
};

}  // namespace ringside::engine
