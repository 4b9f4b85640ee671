#include "engine/ops/panels.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <utility>
#include <vector>

#include "sp/lanes/arithmetic.h"
#include "sp/lanes/for_each_processor.h"
#include "sp/lanes/words.h"

namespace ringside::engine {
namespace {

using at::BFloat16;
namespace blas = at::native::cpublas;

constexpr int64_t kWidth = 64;            // outputs of a panel
constexpr int64_t kRows = 64;             // rows of a tile
constexpr int64_t kExactRows = 16;        // so many rows and fewer have a kernel for each number
constexpr int64_t kDepth = 2048;          // inner elements of one kernel call
constexpr int64_t kGroup = 1 << 19;       // bytes of the panels that stay in a core's cache
constexpr int64_t kPieceFlops = 1 << 19;  // below which a further thread does not pay

template <class T>
constexpr bool kPaired = std::is_same_v<T, BFloat16>;

// One kernel call. The elements of bf16 lie in pairs of the inner dimension.
void kernel(int64_t rows, int64_t depth, int64_t stride, bool add, const float* x,
            const float* panel, float* tile) {
  blas::brgemm(rows, kWidth, depth, stride, kWidth, kWidth, add, x, panel, tile);
}
void kernel(int64_t rows, int64_t depth, int64_t stride, bool add, const BFloat16* x,
            const BFloat16* panel, float* tile) {
  blas::brgemm(rows, kWidth, depth, stride, kWidth, kWidth, add, x, panel, tile);
}

// Whether LibTorch finds the kernel: the processor may have it, and ONEDNN_MAX_CPU_ISA forbid it.
template <class T>
bool runs_here() {
#if defined(__x86_64__)
  if (!(kPaired<T> ? __builtin_cpu_supports("avx512bf16") : __builtin_cpu_supports("avx2"))) {
    return false;
  }
  try {
    std::array<T, 2> x{};
    std::array<T, 2 * kWidth> panel{};
    std::array<float, kWidth> tile{};
    kernel(1, 2, 2, false, x.data(), panel.data(), tile.data());
    blas::brgemm_release(kPaired<T>);
    return true;
  } catch (const std::exception&) {  // LibTorch's or oneDNN's
    return false;
  }
#else
  return false;
#endif
}

int64_t panels_of(int64_t outputs) { return (outputs + kWidth - 1) / kWidth; }

// `count` elements as fp32.
RINGSIDE_FOR_EACH_PROCESSOR
void widen(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = sp::widened(from[i]);
  }
}

void pack_panel_of_rows(const float* from, int64_t stride, int64_t count, int64_t inner,
                        float* panel) {
  sp::transpose_words({reinterpret_cast<const uint32_t*>(from), stride, count, inner},
                      reinterpret_cast<uint32_t*>(panel), kWidth);
}
void pack_panel_of_rows(const BFloat16* from, int64_t stride, int64_t count, int64_t inner,
                        BFloat16* panel) {
  sp::transpose_words({reinterpret_cast<const uint32_t*>(from), stride / 2, count, inner / 2},
                      reinterpret_cast<uint32_t*>(panel), kWidth);
}
void pack_panel_of_rows(const BFloat16* from, int64_t stride, int64_t count, int64_t inner,
                        float* panel) {
  constexpr int64_t kStrip = 64;
  alignas(64) float strip[kWidth * kStrip];
  for (int64_t k = 0; k < inner; k += kStrip) {
    const int64_t width = std::min(kStrip, inner - k);
    for (int64_t n = 0; n < count; ++n) {
      widen(reinterpret_cast<const uint16_t*>(from + n * stride + k), width, strip + n * kStrip);
    }
    pack_panel_of_rows(strip, kStrip, count, width, panel + k * kWidth);
  }
}

// A row of the inner dimension, or two in bf16.
void pack_inner_row(const float* from, int64_t /*stride*/, int64_t count, float* to) {
  std::copy_n(from, count, to);
}
void pack_inner_row(const BFloat16* from, int64_t /*stride*/, int64_t count, float* to) {
  widen(reinterpret_cast<const uint16_t*>(from), count, to);
}
void pack_inner_row(const BFloat16* from, int64_t stride, int64_t count, BFloat16* to) {
  sp::interleave(reinterpret_cast<const uint16_t*>(from),
                 reinterpret_cast<const uint16_t*>(from + stride), count,
                 reinterpret_cast<uint16_t*>(to));
}

// From a matrix in From to panels in T.
template <class From, class T>
void pack_rows_into(const at::Tensor& matrix_NK, const at::Tensor& packed) {
  const int64_t outputs = matrix_NK.size(0), inner = matrix_NK.size(1);
  const int64_t stride = matrix_NK.stride(0);
  const From* const from = matrix_NK.const_data_ptr<From>();
  T* const to = packed.mutable_data_ptr<T>();
  at::parallel_for(0, panels_of(outputs), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      pack_panel_of_rows(from + p * kWidth * stride, stride, std::min(kWidth, outputs - p * kWidth),
                         inner, to + p * inner * kWidth);
    }
  });
}

template <class From, class T>
void pack_columns_into(const at::Tensor& matrix_KN, const at::Tensor& packed) {
  const int64_t outputs = matrix_KN.size(1), inner = matrix_KN.size(0);
  const int64_t stride = matrix_KN.stride(0);
  const From* const from = matrix_KN.const_data_ptr<From>();
  T* const to = packed.mutable_data_ptr<T>();
  at::parallel_for(0, panels_of(outputs), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t count = std::min(kWidth, outputs - p * kWidth);
      for (int64_t k = 0; k < inner; k += kPaired<T> ? 2 : 1) {
        pack_inner_row(from + p * kWidth + k * stride, stride, count,
                       to + (p * inner + k) * kWidth);
      }
    }
  });
}

// Memory of the panels. What pads the last one is zero.
at::Tensor empty_panels(const at::Tensor& matrix, at::ScalarType dtype, int64_t outputs,
                        int64_t inner) {
  const bool widens = dtype == at::kFloat && matrix.scalar_type() == at::kBFloat16;
  TORCH_CHECK(matrix.device().is_cpu() && Panels::can_hold(dtype, inner) &&
                  (widens || dtype == matrix.scalar_type()),
              "panels: no kernel here for ", matrix.scalar_type(), " as ", dtype,
              " with the inner size ", inner, " on ", matrix.device());
  const int64_t count = panels_of(outputs);
  std::vector<int64_t> shape{count, inner, kWidth};
  if (dtype == at::kBFloat16) {
    shape = {count, inner / 2, kWidth, 2};
  }
  at::Tensor packed = at::empty(shape, matrix.options().dtype(dtype));
  if (outputs % kWidth != 0) {
    packed[count - 1].zero_();
  }
  return packed;
}

// The matrix with rows that the packing can read: elements beside each other and, in bf16, pairs
// that begin where words do.
at::Tensor readable(const at::Tensor& matrix) {
  const bool words = matrix.scalar_type() == at::kFloat ||
                     (matrix.stride(0) % 2 == 0 && matrix.storage_offset() % 2 == 0);
  return matrix.stride(1) == 1 && words ? matrix : matrix.clone(at::MemoryFormat::Contiguous);
}

void check_matrix(const at::Tensor& matrix) {
  TORCH_CHECK(matrix.dim() == 2, "panels: expected a matrix, got ", matrix.sizes());
}

// One product, of pointers. X: of x and the bias.
template <class X, class T, class Out>
struct Product {
  const X* x;
  int64_t x_stride, rows;
  const T* panels;
  int64_t inner, outputs;
  Out* y;
  int64_t y_stride;
  Store store;
  const X* bias;  // null: none
};

inline float rounded_to(float value, float) { return value; }
inline uint16_t rounded_to(float value, uint16_t) { return sp::rounded_to_bf16(value); }

template <class Out>
[[gnu::always_inline]] inline void store_row(const float* from, const float* bias, Store store,
                                             int64_t count, Out* to) {
  if (store == Store::kAdd) {
    if constexpr (std::is_same_v<Out, float>) {
      for (int64_t i = 0; i < count; ++i) {
        to[i] += from[i];
      }
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    to[i] = rounded_to(from[i] + bias[i], Out());
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
void store_rows(const float* tile, const float* bias, Store store, int64_t rows, int64_t count,
                float* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    store_row(tile + r * kWidth, bias, store, count, to + r * stride);
  }
}
RINGSIDE_FOR_EACH_PROCESSOR
void store_rows(const float* tile, const float* bias, Store store, int64_t rows, int64_t count,
                uint16_t* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    store_row(tile + r * kWidth, bias, store, count, to + r * stride);
  }
}

float* words_of(float* y) { return y; }
uint16_t* words_of(BFloat16* y) { return reinterpret_cast<uint16_t*>(y); }

// Rows of x that one kernel call takes, and those of them that it stores.
struct Rows {
  int64_t begin, count, store_from;
};

// The tiles of so many rows. The last one is computed together with rows before it, so that few
// numbers of rows, each with a kernel of its own, occur.
std::vector<Rows> tiles_of(int64_t rows) {
  if (rows <= kExactRows) {
    return {{0, rows, 0}};
  }
  const int64_t size = rows >= kRows ? kRows : rows >= kRows / 2 ? kRows / 2 : kExactRows;
  std::vector<Rows> tiles;
  int64_t done = 0;
  for (; rows - done >= size; done += size) {
    tiles.push_back({done, size, done});
  }
  if (const int64_t left = rows - done; left > 0) {
    const int64_t last = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(left)));
    tiles.push_back({rows - last, last, done});
  }
  return tiles;
}

// Rows of x as the kernel takes them: as they are, or widened.
template <class T>
struct TileRows {
  const T* first;
  int64_t stride;
};

template <class T, class Out>
TileRows<T> tile_rows(const Product<T, T, Out>& p, const Rows& rows, std::vector<T>& /*memory*/) {
  return {p.x + rows.begin * p.x_stride, p.x_stride};
}
template <class Out>
TileRows<float> tile_rows(const Product<BFloat16, float, Out>& p, const Rows& rows,
                          std::vector<float>& memory) {
  memory.resize(static_cast<std::size_t>(kRows * p.inner));
  for (int64_t r = 0; r < rows.count; ++r) {
    widen(reinterpret_cast<const uint16_t*>(p.x + (rows.begin + r) * p.x_stride), p.inner,
          memory.data() + r * p.inner);
  }
  return {memory.data(), p.inner};
}

// A tile of the result: these rows and one panel.
template <class X, class T, class Out>
void compute_tile(const Product<X, T, Out>& p, const Rows& rows, const TileRows<T>& x,
                  int64_t panel) {
  alignas(64) float tile[kRows * kWidth];
  if (p.inner == 0) {
    std::fill_n(tile, kRows * kWidth, 0.0F);
  }
  const T* const columns = p.panels + panel * p.inner * kWidth;
  for (int64_t k = 0; k < p.inner; k += kDepth) {
    kernel(rows.count, std::min(kDepth, p.inner - k), x.stride, k > 0, x.first + k,
           columns + k * kWidth, tile);
  }
  const int64_t count = std::min(kWidth, p.outputs - panel * kWidth);
  float bias[kWidth] = {};
  for (int64_t i = 0; p.bias != nullptr && i < count; ++i) {
    bias[i] = static_cast<float>(p.bias[panel * kWidth + i]);
  }
  const int64_t skipped = rows.store_from - rows.begin;
  store_rows(tile + skipped * kWidth, bias, p.store, rows.count - skipped, count,
             words_of(p.y) + rows.store_from * p.y_stride + panel * kWidth, p.y_stride);
}

// Groups of panels one after another, the rows of each in order: a group stays in the cache while
// the rows go by.
template <class X, class T, class Out>
void compute(const Product<X, T, Out>& p) {
  const std::vector<Rows> rows = tiles_of(p.rows);
  const int64_t panels = panels_of(p.outputs), blocks = static_cast<int64_t>(rows.size());
  const int64_t panel_bytes = std::max<int64_t>(1, p.inner * kWidth * sizeof(T));
  const int64_t group = std::clamp<int64_t>(kGroup / panel_bytes, 1, panels);
  const int64_t flops = 2 * std::min(p.rows, kRows) * kWidth * std::max<int64_t>(1, p.inner);
  const int64_t grain = std::max<int64_t>(1, kPieceFlops / flops);
  at::parallel_for(0, blocks * panels, grain, [&](int64_t begin, int64_t end) {
    std::vector<T> memory;
    TileRows<T> x{};
    int64_t held = -1;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t first = item / (group * blocks) * group;
      const int64_t width = std::min(group, panels - first), place = item - first * blocks;
      if (held != place / width) {
        held = place / width;
        x = tile_rows(p, rows[held], memory);
      }
      compute_tile(p, rows[held], x, first + place % width);
    }
    blas::brgemm_release(kPaired<T>);
  });
}

// That of a single row may be anything.
int64_t row_stride(const at::Tensor& matrix) {
  return matrix.size(0) > 1 ? matrix.stride(0) : std::max<int64_t>(1, matrix.size(1));
}

template <class X, class T, class Out>
void multiply_as(const at::Tensor& x, const Panels& panels, const at::Tensor& y, Store store,
                 const at::Tensor& bias) {
  compute(Product<X, T, Out>{x.const_data_ptr<X>(), row_stride(x), x.size(0),
                             panels.packed().const_data_ptr<T>(), panels.inner(), panels.outputs(),
                             y.mutable_data_ptr<Out>(), row_stride(y), store,
                             bias.defined() ? bias.const_data_ptr<X>() : nullptr});
}

}  // namespace

bool has_contiguous_rows(const at::Tensor& matrix) {
  return matrix.dim() == 2 && (matrix.size(1) <= 1 || matrix.stride(1) == 1) &&
         (matrix.size(0) <= 1 || matrix.stride(0) >= matrix.size(1));
}

bool Panels::can_hold(at::ScalarType dtype, int64_t inner) {
  static const bool floats = runs_here<float>(), halves = runs_here<BFloat16>();
  return (dtype == at::kFloat && floats) || (dtype == at::kBFloat16 && halves && inner % 2 == 0);
}

int64_t Panels::bytes(int64_t outputs, int64_t inner, at::ScalarType dtype) {
  return panels_of(outputs) * kWidth * inner * static_cast<int64_t>(c10::elementSize(dtype));
}

Panels::Panels(at::Tensor packed, int64_t outputs, int64_t inner)
    : packed_(std::move(packed)), outputs_(outputs), inner_(inner) {}

Panels Panels::of_rows(const at::Tensor& matrix_NK) {
  return of_rows(matrix_NK, matrix_NK.scalar_type());
}

Panels Panels::of_rows(const at::Tensor& matrix_NK, at::ScalarType dtype) {
  check_matrix(matrix_NK);
  const int64_t outputs = matrix_NK.size(0), inner = matrix_NK.size(1);
  at::Tensor packed = empty_panels(matrix_NK, dtype, outputs, inner);
  const at::Tensor rows = readable(matrix_NK.detach());
  if (rows.scalar_type() == at::kFloat) {
    pack_rows_into<float, float>(rows, packed);
  } else if (dtype == at::kFloat) {
    pack_rows_into<BFloat16, float>(rows, packed);
  } else {
    pack_rows_into<BFloat16, BFloat16>(rows, packed);
  }
  return {std::move(packed), outputs, inner};
}

Panels Panels::of_columns(const at::Tensor& matrix_KN) {
  return of_columns(matrix_KN, matrix_KN.scalar_type());
}

Panels Panels::of_columns(const at::Tensor& matrix_KN, at::ScalarType dtype) {
  check_matrix(matrix_KN);
  const int64_t outputs = matrix_KN.size(1), inner = matrix_KN.size(0);
  at::Tensor packed = empty_panels(matrix_KN, dtype, outputs, inner);
  const at::Tensor rows = matrix_KN.detach();
  const at::Tensor read = rows.stride(1) == 1 ? rows : rows.contiguous();
  if (read.scalar_type() == at::kFloat) {
    pack_columns_into<float, float>(read, packed);
  } else if (dtype == at::kFloat) {
    pack_columns_into<BFloat16, float>(read, packed);
  } else {
    pack_columns_into<BFloat16, BFloat16>(read, packed);
  }
  return {std::move(packed), outputs, inner};
}

void multiply(const at::Tensor& x_MK, const Panels& panels, const at::Tensor& y_MN, Store store,
              const at::Tensor& bias_N) {
  TORCH_CHECK(
      has_contiguous_rows(x_MK) && has_contiguous_rows(y_MN) && x_MK.size(1) == panels.inner() &&
          y_MN.size(0) == x_MK.size(0) && y_MN.size(1) == panels.outputs(),
      "panels: x ", x_MK.sizes(), " ", x_MK.strides(), " and y ", y_MN.sizes(), " ", y_MN.strides(),
      " do not fit a packed matrix [", panels.outputs(), ", ", panels.inner(), "]");
  const bool wide = y_MN.scalar_type() == at::kFloat,
             narrow_x = x_MK.scalar_type() == at::kBFloat16;
  TORCH_CHECK((x_MK.scalar_type() == panels.dtype() || narrow_x) &&
                  (wide || (store == Store::kSet && y_MN.scalar_type() == x_MK.scalar_type())),
              "panels of ", panels.dtype(), ": x is ", x_MK.scalar_type(), " and y ",
              y_MN.scalar_type());
  TORCH_CHECK(
      !bias_N.defined() || (bias_N.scalar_type() == x_MK.scalar_type() && bias_N.is_contiguous() &&
                            bias_N.numel() == panels.outputs() && store == Store::kSet),
      "panels: a bias of ", panels.outputs(), " contiguous elements in ", x_MK.scalar_type(),
      " was expected");
  if (y_MN.numel() == 0) {
    return;
  }
  if (x_MK.scalar_type() == at::kFloat) {
    multiply_as<float, float, float>(x_MK, panels, y_MN, store, bias_N);
  } else if (panels.dtype() == at::kFloat) {
    wide ? multiply_as<BFloat16, float, float>(x_MK, panels, y_MN, store, bias_N)
         : multiply_as<BFloat16, float, BFloat16>(x_MK, panels, y_MN, store, bias_N);
  } else {
    wide ? multiply_as<BFloat16, BFloat16, float>(x_MK, panels, y_MN, store, bias_N)
         : multiply_as<BFloat16, BFloat16, BFloat16>(x_MK, panels, y_MN, store, bias_N);
  }
}

}  // namespace ringside::engine
