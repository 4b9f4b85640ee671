// Matrices held in 4 or 8 bits: constants that are unpacked for each product.
//
// nf4: bitsandbytes' layout to the bit. Blocks of 64 elements in row-major order, the last may be
// shorter; each holds its largest magnitude in fp32 and an index into 16 values for each element,
// two indices a byte, the first in the high half. 4.5 bits an element.
// int8: the rows' largest magnitudes in fp32 and round(127 w / magnitude); 8 bits an element.
//
// Source: Dettmers et al. 2023 (nf4) and 2022 (int8, without its outliers).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/params/tensor_cut.h"

namespace ringside::engine {

enum class QuantisedFormat { kNf4, kInt8 };

// Elements of a block of nf4.
inline constexpr int64_t kNf4Block = 64;

// The 16 values of nf4, rising, [16] fp32 on the CPU.
at::Tensor nf4_values();

// Thread safety: const.
class QuantisedMatrix {
 public:
  // Quantises a matrix of any floating-point dtype, on its device.
  // Throws: c10::Error on another number of dimensions or an integer dtype.
  static QuantisedMatrix of(const at::Tensor& matrix, QuantisedFormat format);

  // What a tensor-parallel rank has of it: the same values as in the whole matrix. A copy.
  // Throws: c10::Error when the piece cuts a block of nf4; std::out_of_range when there is no such
  // part.
  QuantisedMatrix piece(const TensorCut& cut, int64_t part) const;

  // The values, computed in fp32 and cast last. Allocates the matrix.
  // Shapes: returns [rows(), columns()].
  at::Tensor unpack(at::ScalarType dtype) const;

  // Why tensor-parallel ranks cannot divide a matrix [rows, columns] like this: a clause that names
  // the first block of nf4 that is cut. "" when they can.
  static std::string cut_problem(int64_t rows, int64_t columns, QuantisedFormat format,
                                 const TensorCut& cut);

  // What a matrix takes.
  static int64_t packed_bytes(int64_t rows, int64_t columns, QuantisedFormat format);
  // The most memory that of() needs beside the matrix and the result, about.
  static int64_t packing_bytes(int64_t elements);

  QuantisedFormat format() const { return format_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  // nf4: [(elements + 1) / 2] uint8; int8: [rows, columns].
  const at::Tensor& packed() const { return packed_; }
  // Largest magnitudes. nf4: [blocks]; int8: [rows]. fp32.
  const at::Tensor& absmax() const { return absmax_; }

  c10::Device device() const { return packed_.device(); }
  int64_t bytes() const { return packed_.nbytes() + absmax_.nbytes(); }

 private:
  QuantisedMatrix rows_of(const std::vector<sp::Range>& ranges) const;
  QuantisedMatrix columns_of(const sp::Range& range) const;

  QuantisedFormat format_ = QuantisedFormat::kNf4;
  int64_t rows_ = 0, columns_ = 0;
  at::Tensor packed_, absmax_;
};

// Values of nf4 from their parts.
// Shapes: packed [(count + 1) / 2] uint8; absmax [blocks] fp32, one for each `block` elements;
// returns [count] fp32 on packed's device.
at::Tensor unpack_nf4(const at::Tensor& packed, const at::Tensor& absmax, int64_t count,
                      int64_t block);

// Quantised matrices with equal numbers of columns, one below the other, as one weight. At least
// one.
struct PackedWeight {
  std::vector<QuantisedMatrix> parts;

  // Rows of all parts.
  int64_t rows() const;
  int64_t columns() const { return parts.front().columns(); }
  // All values, [rows(), columns()]. Allocates the matrix, and one part of it a second time.
  at::Tensor unpack(at::ScalarType dtype) const;
};

}  // namespace ringside::engine
