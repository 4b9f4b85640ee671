// Layout of a parameter unit: the names and shapes of its parameters, and their places in one flat
// buffer. A pure value, the same on every rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ringside::engine {

// One named tensor inside the flat buffer. `name` is the Hugging Face name.
struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;
  // Kept, stored and published in fp32 where the other parameters are narrower. All parameters of a
  // unit agree in this.
  bool in_fp32 = false;
  // Number of elements.
  int64_t numel() const;
  bool operator==(const ParamSpec&) const = default;
};

// The dtype of a parameter in files and messages whose other parameters have `dtype`.
at::ScalarType widened_dtype(const ParamSpec& spec, at::ScalarType dtype);

// How a unit's buffer is cut into matrices. Each of `rows` rows of the buffer holds one row of
// every matrix, one after another; one row holds all of them.
struct UnitShapes {
  at::ScalarType dtype;
  std::vector<std::vector<int64_t>> shapes;
  int64_t rows = 1;
};

// Thread safety: immutable.
class UnitLayout {
 public:
  // A parameter's place in the whole flat buffer, in elements.
  struct Range {
    int64_t offset;
    int64_t numel;
  };

  // The parameters lie one after another, in the order of `specs`.
  UnitLayout(std::string name, std::vector<ParamSpec> specs);

  // Of the unit, for messages.
  const std::string& name() const { return name_; }
  const std::vector<ParamSpec>& specs() const { return specs_; }
  // Elements of all parameters together, on all ranks.
  int64_t numel() const { return numel_; }
  // The place of parameter i.
  // Throws: std::out_of_range when i is not below specs().size().
  Range range(std::size_t i) const { return {offsets_.at(i), specs_[i].numel()}; }
  // The parameters as they are, one matrix each.
  UnitShapes shapes(at::ScalarType dtype) const;

  // Parameter i in a whole flat buffer of this layout, as a view with its shape.
  // Throws: c10::Error on another number of elements; std::out_of_range as range().
  at::Tensor view_of(const at::Tensor& buffer, std::size_t i) const;

 private:
  std::string name_;
  std::vector<ParamSpec> specs_;
  std::vector<int64_t> offsets_;  // of each parameter
  int64_t numel_ = 0;
};

// A flat buffer of unit `unit`, or of a part of it, as the matrices of `cut`: views. Those of a
// buffer of several rows are strided.
// Throws: c10::Error when the shapes do not add up to the buffer.
std::vector<at::Tensor> matrices_of(const std::string& unit, const at::Tensor& flat,
                                    const UnitShapes& cut);

}  // namespace ringside::engine
