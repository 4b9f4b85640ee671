// Layout of a parameter unit: the names and shapes of its parameters, and their places in one flat
// buffer. A pure value, the same on every rank.
//
// Tensor-parallel ranks have parts of the parameters. Then there is one buffer a part, with its
// piece of each parameter one after another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/params/named_slice.h"
#include "engine/params/tensor_cut.h"

namespace ringside::engine {

// One named tensor inside the flat buffer. `name` is the Hugging Face name.
struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;
  // Kept, stored and published in fp32 where the other parameters are narrower. All parameters of a
  // unit agree in this.
  bool in_fp32 = false;
  // What each tensor-parallel rank has of it. Every rank has all of it where nothing is cut.
  TensorCut cut = {};
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

  // The parameters lie one after another, in the order of `specs`. They are all cut, into the same
  // number of parts, or all whole.
  // Throws: std::invalid_argument when they are not, as check_cut(), and when a part has columns
  // that do not follow each other.
  UnitLayout(std::string name, std::vector<ParamSpec> specs);

  // Of the unit, for messages.
  const std::string& name() const { return name_; }
  const std::vector<ParamSpec>& specs() const { return specs_; }
  // Elements of all parameters together, on all ranks.
  int64_t numel() const { return numel_; }
  // The place of parameter i.
  // Throws: std::out_of_range when i is not below specs().size().
  Range range(std::size_t i) const { return {offsets_.at(i), specs_[i].numel()}; }
  // Into how many parts the parameters are cut; 1: not at all.
  int64_t num_parts() const { return num_parts_; }
  // Elements of a part's buffer.
  // Throws: std::out_of_range when there is no such part.
  int64_t part_numel(int64_t part) const;
  // The parameters as they are, one matrix each: of a part its pieces.
  // Throws: as part_numel().
  UnitShapes shapes(at::ScalarType dtype, int64_t part = 0) const;

  // What a run of a part's buffer has of parameter i, in order: views of `values`. A piece of
  // several row ranges is several slices.
  // first: of the run's elements, in the part's buffer. Shapes: values [elements of the run].
  // Throws: std::out_of_range as range() and part_numel().
  std::vector<NamedSlice> slices_of_run(std::size_t i, int64_t part, int64_t first,
                                        const at::Tensor& values) const;
  // The parts' buffers, one after another -> the whole flat buffer. Where nothing is cut it is
  // `parts` itself.
  // Shapes: [numel()] -> [numel()].
  // Throws: c10::Error on another number of elements.
  at::Tensor whole_of(const at::Tensor& parts) const;

  // Parameter i in a whole flat buffer of this layout, as a view with its shape.
  // Throws: c10::Error on another number of elements; std::out_of_range as range().
  at::Tensor view_of(const at::Tensor& buffer, std::size_t i) const;

 private:
  // Element of a part's buffer at which its piece of parameter i begins, and the piece's size.
  Range piece_range(std::size_t i, int64_t part) const;

  std::string name_;
  std::vector<ParamSpec> specs_;
  std::vector<int64_t> offsets_;  // of each parameter
  int64_t numel_ = 0;
  int64_t num_parts_ = 1;
};

// A part's piece of a parameter. Shapes: whole with all rows and columns -> piece_shape().
// Throws: as piece_shape().
at::Tensor piece_of(const at::Tensor& whole, const TensorCut& cut, int64_t part);

// A flat buffer of unit `unit`, or of a part of it, as the matrices of `cut`: views. Those of a
// buffer of several rows are strided.
// Throws: c10::Error when the shapes do not add up to the buffer.
std::vector<at::Tensor> matrices_of(const std::string& unit, const at::Tensor& flat,
                                    const UnitShapes& cut);

}  // namespace ringside::engine
