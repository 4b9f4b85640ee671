#include "engine/params/quantised_matrix.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <utility>

namespace ringside::engine {
namespace {

// bitsandbytes' get_4bit_type("nf4").
constexpr std::array<float, 16> kNf4Values = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

// Magnitudes below it are divided by it instead.
constexpr double kSmallest = 1e-38;
constexpr double kInt8Largest = 127.0;

struct Packed {
  at::Tensor bytes;
  at::Tensor absmax;
};

// Elements that are packed at once: whole blocks of nf4, and an even number. Bounds the memory for
// it, which is about 9 bytes an element.
constexpr int64_t kPiece = int64_t{1} << 20;

// The operations and their order are bitsandbytes', whose bytes these are: whole blocks are
// multiplied by the reciprocal, the last one is divided.
Packed pack_nf4_piece(const at::Tensor& values) {
  const int64_t count = values.numel(), blocks = count / kNf4Block, whole = blocks * kNf4Block;
  const at::Tensor by_block = values.narrow(0, 0, whole).view({blocks, kNf4Block});
  at::Tensor absmax = blocks > 0 ? by_block.abs().amax(-1) : at::zeros({0}, values.options());
  const at::Tensor inverse = absmax.clamp_min(kSmallest).reciprocal().unsqueeze(1);
  at::Tensor scaled = (by_block * inverse).clamp(-1, 1).view({-1});
  if (whole < count) {
    const at::Tensor rest = values.narrow(0, whole, count - whole);
    const at::Tensor largest = rest.abs().amax().clamp_min(kSmallest).unsqueeze(0);
    absmax = at::cat({absmax, largest});
    scaled = at::cat({scaled, (rest / largest).clamp(-1, 1)});
  }
  if (count % 2 != 0) {
    scaled = at::constant_pad_nd(scaled, {0, 1});
  }
  const at::Tensor table = nf4_values().to(values.device());
  const at::Tensor bounds = (table.slice(0, 0, 15) + table.slice(0, 1, 16)) / 2;
  const at::Tensor index = at::bucketize(scaled, bounds, /*out_int32=*/true).to(at::kByte);
  const at::Tensor pairs = index.view({-1, 2});
  return {pairs.select(1, 0) * 16 + pairs.select(1, 1), absmax};
}

// values: flat, of any dtype.
Packed pack_nf4(const at::Tensor& values) {
  const int64_t count = values.numel();
  const at::TensorOptions options = values.options();
  Packed all{at::empty({(count + 1) / 2}, options.dtype(at::kByte)),
             at::empty({(count + kNf4Block - 1) / kNf4Block}, options.dtype(at::kFloat))};
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const Packed piece =
        pack_nf4_piece(values.narrow(0, begin, std::min(kPiece, count - begin)).to(at::kFloat));
    all.bytes.narrow(0, begin / 2, piece.bytes.numel()).copy_(piece.bytes);
    all.absmax.narrow(0, begin / kNf4Block, piece.absmax.numel()).copy_(piece.absmax);
  }
  return all;
}

Packed pack_int8_rows(const at::Tensor& rows) {
  const at::Tensor absmax =
      rows.size(1) > 0 ? rows.abs().amax(1) : at::zeros({rows.size(0)}, rows.options());
  const at::Tensor scale = kInt8Largest / absmax.clamp_min(kSmallest);
  return {(rows * scale.unsqueeze(1)).round_().clamp_(-kInt8Largest, kInt8Largest).to(at::kChar),
          absmax};
}

// matrix: of any dtype.
Packed pack_int8(const at::Tensor& matrix) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  const at::TensorOptions options = matrix.options();
  Packed all{at::empty({rows, columns}, options.dtype(at::kChar)),
             at::empty({rows}, options.dtype(at::kFloat))};
  const int64_t step = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, columns));
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const Packed piece = pack_int8_rows(matrix.narrow(0, begin, count).to(at::kFloat));
    all.bytes.narrow(0, begin, count).copy_(piece.bytes);
    all.absmax.narrow(0, begin, count).copy_(piece.absmax);
  }
  return all;
}

// Both values of each byte, [256, 2].
at::Tensor nf4_pairs(c10::Device device) {
  const at::Tensor table = nf4_values(), byte = at::arange(256, at::kLong);
  return at::stack({table.index_select(0, byte.div(16, "floor")),
                    table.index_select(0, byte.remainder(16))},
                   1)
      .to(device);
}

}  // namespace

at::Tensor nf4_values() {
  return at::tensor(at::ArrayRef<float>(kNf4Values.data(), kNf4Values.size()), at::kFloat);
}

QuantisedMatrix QuantisedMatrix::of(const at::Tensor& matrix, QuantisedFormat format) {
  TORCH_CHECK(matrix.dim() == 2 && matrix.is_floating_point(),
              "quantised matrix: expected a floating-point matrix, got ", matrix.scalar_type(), " ",
              matrix.sizes());
  const at::NoGradGuard no_grad;
  const at::Tensor values = matrix.detach().contiguous();
  QuantisedMatrix result;
  result.format_ = format;
  result.rows_ = matrix.size(0);
  result.columns_ = matrix.size(1);
  Packed packed = format == QuantisedFormat::kNf4 ? pack_nf4(values.view({-1})) : pack_int8(values);
  result.packed_ = std::move(packed.bytes);
  result.absmax_ = std::move(packed.absmax);
  return result;
}

std::string QuantisedMatrix::cut_problem(int64_t rows, int64_t columns, QuantisedFormat format,
                                         const TensorCut& cut) {
  if (format == QuantisedFormat::kInt8) {
    return "";
  }
  const bool by_rows = cut.along == CutAlong::kRows;
  // Elements between two rows, or columns, of the flattened matrix. Each row of a matrix that is
  // cut by columns begins with a block of its own.
  const int64_t each = by_rows ? columns : 1, all = by_rows ? rows : columns;
  const auto is_on_block = [&](int64_t at) {
    return at * each % kNf4Block == 0 || (by_rows && at == all);
  };
  for (const std::vector<sp::Range>& ranges : cut.of_part) {
    for (const auto& [begin, end] : ranges) {
      const bool rows_on_blocks = by_rows || columns % kNf4Block == 0;
      if (!rows_on_blocks || !is_on_block(begin) || !is_on_block(end)) {
        return std::string(by_rows ? "rows " : "columns ") + std::to_string(begin) + " to " +
               std::to_string(end) + " of a matrix [" + std::to_string(rows) + ", " +
               std::to_string(columns) + "] cut a block of " + std::to_string(kNf4Block) +
               " elements of nf4";
      }
    }
  }
  return "";
}

QuantisedMatrix QuantisedMatrix::rows_of(const std::vector<sp::Range>& ranges) const {
  QuantisedMatrix piece = *this;
  piece.rows_ = sp::total_size(ranges);
  std::vector<at::Tensor> packed{packed_.narrow(0, 0, 0)}, absmax{absmax_.narrow(0, 0, 0)};
  for (const auto& [begin, end] : ranges) {
    if (format_ == QuantisedFormat::kInt8) {
      packed.push_back(packed_.narrow(0, begin, end - begin));
      absmax.push_back(absmax_.narrow(0, begin, end - begin));
      continue;
    }
    const int64_t first = begin * columns_, last = end * columns_;
    packed.push_back(packed_.slice(0, first / 2, (last + 1) / 2));
    absmax.push_back(absmax_.slice(0, first / kNf4Block, (last + kNf4Block - 1) / kNf4Block));
  }
  piece.packed_ = at::cat(packed);
  piece.absmax_ = at::cat(absmax);
  return piece;
}

QuantisedMatrix QuantisedMatrix::columns_of(const sp::Range& range) const {
  QuantisedMatrix piece = *this;
  piece.columns_ = range.size();
  if (format_ == QuantisedFormat::kInt8) {
    piece.packed_ = packed_.narrow(1, range.begin, range.size()).clone();
    return piece;
  }
  TORCH_CHECK(
      columns_ % kNf4Block == 0 && range.begin % kNf4Block == 0 && range.size() % kNf4Block == 0,
      "quantised matrix: columns ", range.begin, " to ", range.end, " of a matrix [", rows_, ", ",
      columns_, "] cut a block of ", kNf4Block, " elements of nf4");
  const auto narrowed = [&](const at::Tensor& flat, int64_t each) {
    return flat.view({rows_, columns_ / each})
        .narrow(1, range.begin / each, range.size() / each)
        .reshape({-1})
        .clone();
  };
  piece.packed_ = narrowed(packed_, 2);
  piece.absmax_ = narrowed(absmax_, kNf4Block);
  return piece;
}

QuantisedMatrix QuantisedMatrix::piece(const TensorCut& cut, int64_t part) const {
  const at::NoGradGuard no_grad;
  const std::vector<sp::Range>& ranges = cut.of_part.at(part);
  const std::string problem = cut_problem(rows_, columns_, format_, cut);
  TORCH_CHECK(problem.empty(), "quantised matrix: ", problem);
  if (cut.along == CutAlong::kRows) {
    return rows_of(ranges);
  }
  TORCH_CHECK(ranges.size() < 2, "quantised matrix: ", ranges.size(),
              " ranges of columns, expected at most one");
  return columns_of(ranges.empty() ? sp::Range{} : ranges.front());
}

int64_t QuantisedMatrix::packed_bytes(int64_t rows, int64_t columns, QuantisedFormat format) {
  const int64_t elements = rows * columns;
  return format == QuantisedFormat::kNf4
             ? (elements + 1) / 2 + (elements + kNf4Block - 1) / kNf4Block * 4
             : elements + rows * 4;
}

// Scaled values and 32-bit indices of a piece, and indices of a byte.
int64_t QuantisedMatrix::packing_bytes(int64_t elements) { return 9 * std::min(elements, kPiece); }

at::Tensor unpack_nf4(const at::Tensor& packed, const at::Tensor& absmax, int64_t count,
                      int64_t block) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = nf4_pairs(packed.device())
                                .index_select(0, packed.view({-1}).to(at::kInt))
                                .view({-1})
                                .narrow(0, 0, count);
  const int64_t blocks = count / block, whole = blocks * block;
  values.narrow(0, 0, whole).view({blocks, block}).mul_(absmax.narrow(0, 0, blocks).unsqueeze(1));
  if (whole < count) {
    values.narrow(0, whole, count - whole).mul_(absmax[blocks]);
  }
  return values;
}

at::Tensor QuantisedMatrix::unpack(at::ScalarType dtype) const {
  const at::NoGradGuard no_grad;
  const at::Tensor values =
      format_ == QuantisedFormat::kNf4
          ? unpack_nf4(packed_, absmax_, rows_ * columns_, kNf4Block).view({rows_, columns_})
          : packed_.to(at::kFloat).mul_((absmax_ / kInt8Largest).unsqueeze(1));
  return values.to(dtype);
}

int64_t PackedWeight::rows() const {
  int64_t rows = 0;
  for (const QuantisedMatrix& part : parts) {
    rows += part.rows();
  }
  return rows;
}

at::Tensor PackedWeight::unpack(at::ScalarType dtype) const {
  if (parts.size() == 1) {
    return parts.front().unpack(dtype);
  }
  at::Tensor all = at::empty({rows(), columns()},
                             at::TensorOptions().device(parts.front().device()).dtype(dtype));
  int64_t row = 0;
  for (const QuantisedMatrix& part : parts) {
    all.narrow(0, row, part.rows()).copy_(part.unpack(dtype));
    row += part.rows();
  }
  return all;
}

}  // namespace ringside::engine
