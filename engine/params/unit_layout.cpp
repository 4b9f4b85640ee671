#include "engine/params/unit_layout.h"

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

at::ScalarType widened_dtype(const ParamSpec& spec, at::ScalarType dtype) {
  return spec.in_fp32 ? at::promote_types(dtype, at::kFloat) : dtype;
}

UnitLayout::UnitLayout(std::string name, std::vector<ParamSpec> specs)
    : name_(std::move(name)), specs_(std::move(specs)) {
  for (const ParamSpec& spec : specs_) {
    offsets_.push_back(numel_);
    numel_ += spec.numel();
  }
}

UnitShapes UnitLayout::shapes(at::ScalarType dtype) const {
  UnitShapes cut{dtype, {}};
  for (const ParamSpec& spec : specs_) {
    cut.shapes.push_back(spec.shape);
  }
  return cut;
}

at::Tensor UnitLayout::view_of(const at::Tensor& buffer, std::size_t i) const {
  const ParamSpec& spec = specs_.at(i);
  TORCH_CHECK(buffer.dim() == 1 && buffer.numel() == numel_, "unit ", name_, " has ", numel_,
              " elements, got a buffer of shape ", buffer.sizes());
  return buffer.narrow(0, offsets_[i], spec.numel()).view(spec.shape);
}

std::vector<at::Tensor> matrices_of(const std::string& unit, const at::Tensor& flat,
                                    const UnitShapes& cut) {
  std::vector<int64_t> sizes;  // elements of each matrix in a row
  int64_t row = 0;
  for (const std::vector<int64_t>& shape : cut.shapes) {
    sizes.push_back(product(shape) / cut.rows);
    row += sizes.back();
  }
  TORCH_CHECK(row * cut.rows == flat.numel(), "unit ", unit, " holds ", flat.numel(),
              " elements, the shapes asked for take ", row * cut.rows);
  std::vector<at::Tensor> matrices = cut.rows == 1
                                         ? flat.split_with_sizes(sizes)
                                         : flat.view({cut.rows, row}).split_with_sizes(sizes, 1);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    matrices[i] = matrices[i].view(cut.shapes[i]);
  }
  return matrices;
}

}  // namespace ringside::engine
