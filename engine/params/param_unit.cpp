#include "engine/params/param_unit.h"

#include <ATen/ATen.h>

#include <utility>

namespace ringside::engine {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) {
    n *= size;
  }
  return n;
}

}  // namespace

int64_t ParamSpec::numel() const { return product(shape); }

ParamUnit::ParamUnit(std::string name, std::vector<ParamSpec> specs, const ComputeContext& context)
    : name_(std::move(name)), specs_(std::move(specs)) {
  int64_t numel = 0;
  for (const ParamSpec& spec : specs_) {
    offsets_.push_back(numel);
    numel += spec.numel();
  }
  flat_ = at::zeros({numel}, context.master_options()).set_requires_grad(true);
}

void ParamUnit::freeze(at::ScalarType dtype) { flat_ = flat_.detach().to(dtype); }

void ParamUnit::release() {
  flat_ =
      at::empty({flat_.numel()}, at::TensorOptions().dtype(flat_.scalar_type()).device(at::kMeta));
}

at::Tensor ParamUnit::grad() const {
  at::Tensor& grad = flat_.mutable_grad();
  if (!grad.defined()) {
    grad = at::zeros_like(flat_.detach());
  }
  return grad;
}

void ParamUnit::zero_grad() { flat_.mutable_grad().reset(); }

std::vector<Weight> ParamUnit::materialize(at::ScalarType compute_dtype) const {
  std::vector<std::vector<int64_t>> shapes;
  shapes.reserve(specs_.size());
  for (const ParamSpec& spec : specs_) {
    shapes.push_back(spec.shape);
  }
  return materialize(compute_dtype, shapes);
}

std::vector<Weight> ParamUnit::materialize(at::ScalarType compute_dtype,
                                           const std::vector<std::vector<int64_t>>& shapes) const {
  std::vector<int64_t> sizes;
  sizes.reserve(shapes.size());
  int64_t numel = 0;
  for (const std::vector<int64_t>& shape : shapes) {
    sizes.push_back(product(shape));
    numel += sizes.back();
  }
  TORCH_CHECK(numel == flat_.numel(), "unit ", name_, " holds ", flat_.numel(),
              " elements, the shapes asked for take ", numel);
  const std::vector<at::Tensor> leaves = flat_.split_with_sizes(sizes);
  const bool casts = compute_dtype != flat_.scalar_type();
  const std::vector<at::Tensor> values =
      casts ? flat_.detach().to(compute_dtype).split_with_sizes(sizes) : leaves;
  std::vector<Weight> weights;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const at::Tensor leaf = leaves[i].view(shapes[i]);
    weights.push_back(casts ? Weight(values[i].view(shapes[i]), leaf) : Weight(leaf));
  }
  return weights;
}

void ParamUnit::await_readers(const c10::Stream& stream) const {
  if (const auto read = std::exchange(being_read_, nullptr)) {
    read->make_wait(stream);
  }
}

at::Tensor ParamUnit::view(std::size_t i) const {
  TORCH_CHECK(!flat_.is_meta(), "unit ", name_, " does not hold its values: they are quantised");
  return view_of(flat_.detach(), i);
}

at::Tensor ParamUnit::view_of(const at::Tensor& buffer, std::size_t i) const {
  const ParamSpec& spec = specs_.at(i);
  TORCH_CHECK(buffer.dim() == 1 && buffer.numel() == flat_.numel(), "unit ", name_, " has ",
              flat_.numel(), " elements, got a buffer of shape ", buffer.sizes());
  return buffer.narrow(0, offsets_[i], spec.numel()).view(spec.shape);
}

}  // namespace ringside::engine
