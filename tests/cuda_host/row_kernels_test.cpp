// Guards the CUDA row kernels of a ring step without a GPU: rows that differ from what the CPU
// twins move, add or merge, and every fault that operator_kernels_test.cpp names. Shapes: parts
// that are views of wider tensors, head dims that no load of four elements divides, rows of -inf,
// no rows.
#include "sp/attention/cuda/row_kernels.h"

#include <limits>
#include <vector>

#include "tests/cuda_host/checks.h"
#include "tests/sp/cuda_twins.h"

namespace ringside::sp {
namespace {

using test::in_both_orders;
using Tensors = std::vector<at::Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<Range> kRows{{7, 19}, {2, 5}, {30, 31}};  // 16 packed rows
constexpr int64_t kPackedRows = 16, kWholeRows = 33, kHeadBegin = 2;

struct Shape {
  int64_t heads, head_dim;
};
const std::vector<Shape> kShapes{{4, 64}, {1, 8}, {3, 5}, {2, 130}};
const std::vector<std::pair<at::ScalarType, ElementType>> kTypes{
    {at::kBFloat16, ElementType::kBFloat16},
    {at::kHalf, ElementType::kFloat16},
    {at::kFloat, ElementType::kFloat32},
    {at::kDouble, ElementType::kFloat64}};

DeviceMoves moves_tensor(const RowMoves& moves) {
  std::vector<int64_t> values;
  for (const RowMove& move : moves.moves) {
    values.insert(values.end(), {move.first, move.from, move.to});
  }
  return {at::tensor(values, at::kLong).view({-1, 3}), moves.rows};
}

DeviceSums sums_tensor(const RowSums& sums) {
  std::vector<int64_t> values;
  for (const RowSum& sum : sums.sums) {
    values.insert(values.end(), {sum.first, sum.to, sum.sources_begin, sum.sources_end});
  }
  return {at::tensor(values, at::kLong).view({-1, 4}), at::tensor(sums.sources, at::kLong),
          sums.rows};
}

MoveTable table_of(const DeviceMoves& moves) {
  return {static_cast<const RowMove*>(moves.table.const_data_ptr()), moves.table.size(0),
          moves.rows};
}

PartRows part_rows(const at::Tensor& part, ElementType type) {
  return {part.const_data_ptr(), type, part.stride(0), part.stride(1), part.size(1), part.size(2)};
}

WholeRows whole_rows(const at::Tensor& whole) {
  return {whole.mutable_data_ptr(), whole.size(1), kHeadBegin};
}

// A part as it may come: not all heads of a wider tensor, with gaps between the heads where that
// aligns them.
at::Tensor part_of_wider(Shape shape, at::ScalarType dtype) {
  const int64_t spaced = (shape.head_dim + 3) / 4 * 4;
  return at::randn({kPackedRows, shape.heads + 2, spaced})
      .to(dtype)
      .narrow(1, 1, shape.heads)
      .narrow(2, 0, shape.head_dim);
}

TEST_CASE("kernels gather the rows that the CPU gathers") {
  at::manual_seed(1);
  for (const auto dtype : {at::kBFloat16, at::kFloat, at::kByte}) {
    for (const int64_t bytes : {1, 3, 16, 36, 520}) {
      CAPTURE(dtype, bytes);
      cuda_host::DeviceTensors device;
      const DeviceMoves moves = moves_tensor(to_packed(kRows));
      const at::Tensor wide = at::randint(100, {kWholeRows, 2 * bytes + 16}).to(dtype);
      // Dense rows with a gap behind them, on a 16 byte boundary and not; a row that is repeated.
      for (const at::Tensor& rows : {wide.narrow(1, 16, bytes), wide.narrow(1, 1, bytes),
                                     wide.narrow(0, 0, 1).expand({kWholeRows, -1})}) {
        const Tensors got = in_both_orders(device, [&](cuda_host::DeviceTensors& on) {
          const at::Tensor to = on.launching([&] {
            return at::empty({kPackedRows, rows.size(1)}, rows.options());
          });
          const int64_t element = rows.element_size();
          CHECK(gather_rows_cuda(to.mutable_data_ptr(), rows.const_data_ptr(),
                                 rows.size(1) * element, rows.stride(0) * element, table_of(moves),
                                 nullptr) == cudaSuccess);
          return Tensors{to};
        });
        CHECK(at::equal(got[0], test::CpuVarlenGroupOps().gather_rows(rows, moves)));
      }
    }
  }
}

TEST_CASE("kernels add rows as the CPU does") {
  at::manual_seed(2);
  // One source for each row, and up to three.
  const RowSums several{{{0, 7, 0, 1}, {3, 20, 1, 4}, {5, 2, 4, 6}}, {0, 3, 5, 9, 11, 13}, 8};
  for (const RowSums& sums : {as_sums(from_packed(kRows)), several, RowSums{}}) {
    for (const auto& [dtype, type] : kTypes) {
      for (const Shape shape : kShapes) {
        CAPTURE(sums.rows, dtype, shape.heads, shape.head_dim);
        cuda_host::DeviceTensors device;
        const DeviceSums table = sums_tensor(sums);
        const at::Tensor part = part_of_wider(shape, dtype);
        const at::Tensor before =
            at::randn({kWholeRows, shape.heads + 3, shape.head_dim}).to(accumulation_dtype(dtype));
        const Tensors got = in_both_orders(device, [&, type = type](cuda_host::DeviceTensors&) {
          const at::Tensor whole = before.clone();
          const SumTable on_device{static_cast<const RowSum*>(table.sums.const_data_ptr()),
                                   table.sums.size(0), table.sources.const_data_ptr<int64_t>(),
                                   table.rows};
          CHECK(add_rows_cuda(whole_rows(whole), part_rows(part, type), on_device, nullptr) ==
                cudaSuccess);
          return Tensors{whole};
        });
        at::Tensor expected = before.clone();
        test::CpuVarlenGroupOps().add_rows(expected, part, table, kHeadBegin);
        CHECK(test::max_abs_diff(got[0], expected) < 1e-6);
        CHECK(at::equal(got[0], before) == (sums.rows == 0));
      }
    }
  }
}

void check_merged(const std::pair<at::ScalarType, ElementType>& types, Shape shape, bool merge) {
  const auto& [dtype, type] = types;
  CAPTURE(dtype, shape.heads, shape.head_dim, merge);
  cuda_host::DeviceTensors device;
  const DeviceMoves moves = moves_tensor(from_packed(kRows));
  const auto wide = accumulation_dtype(dtype);
  const at::Tensor part = part_of_wider(shape, dtype);
  const at::Tensor part_lse = (at::randn({shape.heads, kPackedRows}) * 30).to(wide);
  const PartialAttention before{at::randn({kWholeRows, shape.heads + 3, shape.head_dim}).to(wide),
                                (at::randn({kWholeRows, shape.heads + 3}) * 30).to(wide)};
  before.lse[8] = -kInfinity;  // of packed row 1
  part_lse.select(1, 1).fill_(-kInfinity);
  before.lse[9] = -kInfinity;
  part_lse.select(1, 3).fill_(-kInfinity);
  const Tensors got = in_both_orders(device, [&, type = type](cuda_host::DeviceTensors& on) {
    const at::Tensor out = before.out.clone(), lse = before.lse.clone();
    const auto call = merge ? merge_rows_cuda : write_rows_cuda;
    CHECK(call(whole_rows(out), part_rows(part, type),
               {lse.mutable_data_ptr(), part_lse.const_data_ptr(), part_lse.stride(1),
                part_lse.stride(0)},
               table_of(moves), nullptr) == cudaSuccess);
    if (!merge) {  // what is only written need not be there before
      const at::Tensor new_out = on.launching([&] { return at::empty_like(out); });
      const at::Tensor new_lse = on.launching([&] { return at::empty_like(lse); });
      CHECK(call(whole_rows(new_out), part_rows(part, type),
                 {new_lse.mutable_data_ptr(), part_lse.const_data_ptr(), part_lse.stride(1),
                  part_lse.stride(0)},
                 table_of(moves), nullptr) == cudaSuccess);
    }
    return Tensors{out, lse};
  });
  PartialAttention expected{before.out.clone(), before.lse.clone()};
  const test::CpuVarlenGroupOps cpu;
  merge ? cpu.merge_rows(expected, {part, part_lse}, moves, kHeadBegin)
        : cpu.write_rows(expected, {part, part_lse}, moves, kHeadBegin);
  CHECK(test::max_abs_diff(got[0], expected.out) < 1e-5);
  CHECK(at::equal(got[1] == -kInfinity, expected.lse == -kInfinity));
  const auto finite = [](const at::Tensor& x) { return x.masked_fill(x == -kInfinity, 0); };
  CHECK(test::max_abs_diff(finite(got[1]), finite(expected.lse)) < 1e-4);
  if (merge) {
    CHECK(got[0][8].narrow(0, kHeadBegin, shape.heads).abs().max().item<double>() == 0.0);
  }
}

TEST_CASE("kernels merge and write rows as the CPU does") {
  at::manual_seed(3);
  for (const auto& types : kTypes) {
    for (const Shape shape : kShapes) {
      for (const bool merge : {true, false}) {
        check_merged(types, shape, merge);
      }
    }
  }
}

}  // namespace
}  // namespace ringside::sp
