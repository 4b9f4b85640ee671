#include "engine/params/unit_layout.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
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

// Throws: std::invalid_argument when a part's columns are no single range.
void check_pieces(const ParamSpec& spec) {
  if (!spec.cut.is_cut()) {
    return;
  }
  check_cut(spec.cut, spec.shape);
  for (const std::vector<sp::Range>& ranges : spec.cut.of_part) {
    if (spec.cut.along == CutAlong::kColumns && ranges.size() > 1) {
      throw std::invalid_argument("parameter " + spec.name + ": a part has " +
                                  std::to_string(ranges.size()) +
                                  " ranges of columns, expected at most one");
    }
  }
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
    if (spec.cut.of_part.size() != specs_.front().cut.of_part.size()) {
      throw std::invalid_argument("unit " + name_ + ": " + spec.name + " is cut into " +
                                  std::to_string(spec.cut.of_part.size()) + " parts and " +
                                  specs_.front().name + " into " +
                                  std::to_string(specs_.front().cut.of_part.size()));
    }
    check_pieces(spec);
  }
  if (!specs_.empty() && specs_.front().cut.is_cut()) {
    num_parts_ = static_cast<int64_t>(specs_.front().cut.of_part.size());
  }
}

UnitLayout::Range UnitLayout::piece_range(std::size_t i, int64_t part) const {
  if (num_parts_ == 1) {
    return range(i);
  }
  Range piece{0, 0};
  for (std::size_t p = 0; p <= i; ++p) {
    piece.offset += piece.numel;
    piece.numel = product(piece_shape(specs_.at(p).cut, specs_[p].shape, part));
  }
  return piece;
}

int64_t UnitLayout::part_numel(int64_t part) const {
  if (part < 0 || part >= num_parts_) {
    throw std::out_of_range("unit " + name_ + ": part " + std::to_string(part) + " of " +
                            std::to_string(num_parts_));
  }
  if (num_parts_ == 1) {
    return numel_;
  }
  const Range last = piece_range(specs_.size() - 1, part);
  return last.offset + last.numel;
}

UnitShapes UnitLayout::shapes(at::ScalarType dtype, int64_t part) const {
  UnitShapes cut{dtype, {}};
  for (const ParamSpec& spec : specs_) {
    cut.shapes.push_back(num_parts_ == 1 ? spec.shape : piece_shape(spec.cut, spec.shape, part));
  }
  return cut;
}

std::vector<NamedSlice> UnitLayout::slices_of_run(std::size_t i, int64_t part, int64_t first,
                                                  const at::Tensor& values) const {
  const ParamSpec& spec = specs_.at(i);
  std::vector<NamedSlice> slices;
  // A block that lies at element `at` of the part's buffer, and at `begin` of the slice's own.
  const auto add = [&](int64_t at, int64_t numel, int64_t begin, std::optional<sp::Range> columns) {
    const int64_t from = std::max(first, at);
    const int64_t to = std::min(first + values.numel(), at + numel);
    if (from < to) {
      slices.push_back({spec.name, spec.shape, begin + from - at,
                        values.narrow(0, from - first, to - from), columns});
    }
  };
  const Range piece = piece_range(i, part);
  if (num_parts_ == 1) {
    add(piece.offset, piece.numel, 0, std::nullopt);
    return slices;
  }
  int64_t at = piece.offset;
  for (const sp::Range& cut : spec.cut.of_part.at(part)) {
    if (spec.cut.along == CutAlong::kColumns) {
      add(at, piece.numel, 0, cut);
      continue;
    }
    const int64_t row = spec.numel() / spec.shape.front();
    add(at, cut.size() * row, cut.begin * row, std::nullopt);
    at += cut.size() * row;
  }
  return slices;
}

at::Tensor UnitLayout::whole_of(const at::Tensor& parts) const {
  TORCH_CHECK(parts.dim() == 1 && parts.numel() == numel_, "unit ", name_, " has ", numel_,
              " elements, got parts of shape ", parts.sizes());
  if (num_parts_ == 1) {
    return parts;
  }
  const at::Tensor whole = at::empty_like(parts);
  int64_t begin = 0;
  for (int64_t part = 0; part < num_parts_; ++part) {
    const at::Tensor buffer = parts.narrow(0, begin, part_numel(part));
    begin += buffer.numel();
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const NamedSlice all{specs_[i].name, specs_[i].shape, 0,
                           whole.narrow(0, offsets_[i], specs_[i].numel())};
      for (const NamedSlice& slice : slices_of_run(i, part, 0, buffer)) {
        copy_shared(slice, all);
      }
    }
  }
  return whole;
}

at::Tensor UnitLayout::view_of(const at::Tensor& buffer, std::size_t i) const {
  const ParamSpec& spec = specs_.at(i);
  TORCH_CHECK(buffer.dim() == 1 && buffer.numel() == numel_, "unit ", name_, " has ", numel_,
              " elements, got a buffer of shape ", buffer.sizes());
  return buffer.narrow(0, offsets_[i], spec.numel()).view(spec.shape);
}

at::Tensor piece_of(const at::Tensor& whole, const TensorCut& cut, int64_t part) {
  const std::vector<int64_t> shape = piece_shape(cut, whole.sizes().vec(), part);
  const int64_t dim = cut.along == CutAlong::kRows ? 0 : 1;
  std::vector<at::Tensor> pieces{whole.narrow(dim, 0, 0)};
  for (const sp::Range& range : cut.of_part[part]) {
    pieces.push_back(whole.narrow(dim, range.begin, range.size()));
  }
  return at::cat(pieces, dim).view(shape);
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
