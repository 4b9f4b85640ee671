// Guards the execution model of CUDA kernels: faults that it passes over, and faults that it sees
// where there are none. Each fault is planted by name, into a small kernel (faults.cu) or into a
// copy of one of ours (faults_of_kernels.json), and must be reported with its kind, its kernel and
// a line of the source. Without a fault the same launches must be clean and right. The copies
// launch at most three blocks, so that each strides over several rows.
#include <algorithm>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "engine/ops/rms_norm_kernel.h"
#include "sp/attention/cuda/row_kernels.h"
#include "tests/cuda_host/checks.h"
#include "tests/cuda_host/faults.h"
#include "tests/cuda_host/on_cuda.h"
#include "tests/support/cuda_host/planted.h"

namespace ringside {
namespace {

using cuda_host::Fault;
using cuda_host::Report;
using Tensors = std::vector<at::Tensor>;

// Launches, and how their results must be.
using Launches = std::function<void(cuda_host::DeviceTensors&)>;

// Results are compared where no fault is planted.
void check_right(bool right) {
  if (cuda_host::planted("")) {
    CHECK(right);
  }
}

at::Tensor numbers() { return at::arange(256).remainder(7).to(at::kFloat); }
at::Tensor zeros() { return at::zeros({256}); }

void sums(cuda_host::DeviceTensors&) {
  const at::Tensor x = numbers(), out = zeros();
  test::run_sum(x.data_ptr<float>(), out.data_ptr<float>());
  const at::Tensor expected = x.view({4, 64}).sum(1);
  check_right(at::equal(out.narrow(0, 0, 4), expected) && out[8].equal(expected[0]));
}

void barriers(cuda_host::DeviceTensors&) {
  const at::Tensor out = zeros();
  test::run_barriers(out.data_ptr<float>());
  check_right(out[0].item<float>() == 10.0f);
}

void lanes(cuda_host::DeviceTensors&) {
  const at::Tensor x = numbers(), out = zeros();
  test::run_lanes(x.data_ptr<float>(), out.data_ptr<float>());
  const at::Tensor pairs = x.view({-1, 2}).sum(1).repeat_interleave(2);
  const auto value = [&](int64_t thread) { return out[thread].item<float>(); };
  const auto of = [&](int64_t thread) { return pairs[thread].item<float>(); };
  check_right(value(5) == of(5) + of(7) + 1);
  check_right(value(15) == 2 * of(15) + 1);  // no lane of its half is two further
  check_right(value(1) == of(1) + of(3) + of(2) + of(4) + 1);
}

void histogram(cuda_host::DeviceTensors&) {
  const at::Tensor x = numbers(), bins = zeros();
  test::run_histogram(x.data_ptr<float>(), bins.data_ptr<float>());
  check_right(at::equal(bins, x.to(at::kLong).bincount({}, 256).to(at::kFloat)));
}

void neighbours(cuda_host::DeviceTensors&) {
  const at::Tensor x = numbers(), out = zeros();
  const float total = x.narrow(0, 0, 32).sum().item<float>();
  test::run_neighbours(x.data_ptr<float>(), out.data_ptr<float>());
  check_right((out.narrow(0, 0, 32) == total).all().item<bool>());
}

void copies(cuda_host::DeviceTensors&) {
  const at::Tensor x = numbers(), out = zeros();
  test::run_copies(x.data_ptr<float>(), out.data_ptr<float>());
  check_right(at::equal(out.narrow(0, 0, 128), x.narrow(0, 0, 128)));
}

// The same on both devices, which must agree.
template <class Call>
void compare(cuda_host::DeviceTensors& device, at::ScalarType dtype, Call call) {
  const Tensors got = device.launching([&] { return call(true); });
  if (cuda_host::planted("")) {
    test::check_close(got, call(false), dtype);
  }
}

void norms_of(cuda_host::DeviceTensors& device, int64_t size) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({7, size}).to(dtype), weight = at::randn({size}).to(dtype);
    compare(device, dtype, [&](bool cuda) {
      using namespace engine;
      const auto [y, rstd] = cuda ? RINGSIDE_ON_CUDA(rms_norm)(x, weight, 1e-5, false, false)
                                  : operators::rms_norm(x, weight, 1e-5, false, false);
      const auto [dx, dw] =
          cuda ? RINGSIDE_ON_CUDA(rms_norm_backward)(x, x, weight, rstd, std::nullopt, false)
               : operators::rms_norm_backward(x, x, weight, rstd, std::nullopt, false);
      return Tensors{y, rstd, dx, dw};
    });
  }
}

void norms(cuda_host::DeviceTensors& device) { norms_of(device, 70); }

// Below the operator's check: the launch itself must be refused.
void largest_norm(cuda_host::DeviceTensors&) {
  const at::Tensor x = at::zeros({12288}, at::kBFloat16);
  const at::Tensor rstd = at::zeros({1}), out = at::zeros({12288}), dx = at::zeros_like(x);
  const engine::NormGradArgs args{.dy = x.const_data_ptr(),
                                  .x = x.const_data_ptr(),
                                  .weight = x.const_data_ptr(),
                                  .rstd = rstd.const_data_ptr(),
                                  .dx = dx.mutable_data_ptr(),
                                  .partial = at::zeros({12288}).mutable_data_ptr(),
                                  .d_weight = out.mutable_data_ptr(),
                                  .rows = 1,
                                  .size = 12288};
  (void)engine::rms_norm_backward_cuda({engine::Element::kBFloat16, true}, args, nullptr);
}

void rotations(cuda_host::DeviceTensors& device) {
  const at::Tensor heads = at::randn({6, 4, 20}), cos = at::randn({6, 1, 10});
  const at::Tensor norm = at::randn({20}), dq = at::randn({6, 2, 20}), dk = at::randn({6, 1, 20});
  compare(device, at::kFloat, [&](bool cuda) {
    using namespace engine;
    const auto forward = [&](const auto& f) {
      return f(heads, 2, 1, norm, norm, cos, cos, 1e-5, false, false);
    };
    const auto [qk, rstd] =
        cuda ? forward(RINGSIDE_ON_CUDA(qk_norm_rope)) : forward(operators::qk_norm_rope);
    const auto backward = [&, rstd = rstd](const auto& f) {
      return f(dq, dk, dk, heads, norm, norm, rstd, cos, cos, false);
    };
    const auto [d_heads, d_norms] = cuda ? backward(RINGSIDE_ON_CUDA(qk_norm_rope_backward))
                                         : backward(operators::qk_norm_rope_backward);
    return Tensors{qk, rstd, d_heads, d_norms};
  });
}

void swiglus(cuda_host::DeviceTensors& device) {
  const at::Tensor gate_up = at::randn({3, 2 * 300});
  compare(device, at::kFloat, [&](bool cuda) {
    return Tensors{cuda ? RINGSIDE_ON_CUDA(swiglu)(gate_up) : engine::operators::swiglu(gate_up)};
  });
}

void scores(cuda_host::DeviceTensors&) {
  const at::Tensor logits = at::randn({2, 260}), targets = at::tensor({3, 259}, at::kLong);
  const at::Tensor ones = at::ones({2});
  const Tensors got{at::empty({2}), at::empty({2}), at::empty({2})},
      expected{at::empty({2}), at::empty({2}), at::empty({2})};
  RINGSIDE_ON_CUDA(token_scores)(logits, targets, ones, got[0], got[1], got[2]);
  engine::operators::token_scores(logits, targets, ones, expected[0], expected[1], expected[2]);
  for (const std::size_t i : {0, 1, 2}) {
    check_right(test::max_abs_diff(got[i], expected[i]) < 1e-5);
  }
}

// Rows 0..4 of a part [5, 2, head_dim] gathered, added, merged and written to a whole [9, 2, ..].
void rows_of(cuda_host::DeviceTensors& device, int64_t head_dim, int64_t apart) {
  const at::Tensor table = at::tensor({0, 0, 3, 2, 2, 6}, at::kLong);
  const at::Tensor sum_table = at::tensor({0, 3, 0, 1, 2, 6, 1, 2}, at::kLong);
  const at::Tensor sources = at::tensor({0, 2}, at::kLong);
  const sp::MoveTable moves{static_cast<const sp::RowMove*>(table.const_data_ptr()), 2, 5};
  const sp::SumTable sums{static_cast<const sp::RowSum*>(sum_table.const_data_ptr()), 2,
                          sources.const_data_ptr<int64_t>(), 5};
  const at::Tensor part = at::randn({5, 2 * head_dim + apart}), part_lse = at::randn({5, 2});
  const sp::PartRows from{part.const_data_ptr(),
                          sp::ElementType::kFloat32,
                          2 * head_dim + apart,
                          head_dim,
                          2,
                          head_dim};
  const at::Tensor gathered = device.launching([&] { return at::empty({9, 2 * head_dim}); });
  const int64_t bytes = 2 * head_dim * 4;
  (void)sp::gather_rows_cuda(gathered.mutable_data_ptr(), part.const_data_ptr(), bytes,
                             bytes + apart * 4, moves, nullptr);
  const at::Tensor rows = part.narrow(1, 0, 2 * head_dim);
  const at::Tensor whole = at::zeros({9, 2, head_dim}), lse = at::full({9, 2}, -1e4);
  const sp::LseRows lses{lse.mutable_data_ptr(), part_lse.const_data_ptr(), 2, 1};
  (void)sp::merge_rows_cuda({whole.mutable_data_ptr(), 2, 0}, from, lses, moves, nullptr);
  check_right(test::max_abs_diff(whole.view({9, -1}).narrow(0, 6, 3), rows.narrow(0, 2, 3)) < 1e-6);
  (void)sp::add_rows_cuda({whole.mutable_data_ptr(), 2, 0}, from, sums, nullptr);
  check_right(test::max_abs_diff(whole.view({9, -1}).narrow(0, 6, 3), 2 * rows.narrow(0, 2, 3)) <
              1e-6);
  const at::Tensor written = device.launching([&] { return at::empty({9, 2, head_dim}); });
  (void)sp::write_rows_cuda({written.mutable_data_ptr(), 2, 0}, from, lses, moves, nullptr);
  check_right(at::equal(written.view({9, -1}).narrow(0, 3, 2), rows.narrow(0, 0, 2)));
  check_right(at::equal(gathered.narrow(0, 6, 3), rows.narrow(0, 2, 3)));
}

void dense_rows(cuda_host::DeviceTensors& device) { rows_of(device, 8, 0); }
void spaced_rows(cuda_host::DeviceTensors& device) { rows_of(device, 8, 1); }

// A fault, the launches that must show it, and what the report must say.
struct Planted {
  const char* name;
  Launches launches;
  Fault fault;
  const char* kernel;
  const char* line;  // part of a line of the source that the report names
};

constexpr const char* kNoLine = "";  // a launch that is refused has none

const std::vector<Planted> kPlanted{
    {"sum: no barrier", sums, Fault::kRace, "sum_kernel", "part[threadIdx.x] = x["},
    {"sum: an index past the array", sums, Fault::kOutOfBounds, "sum_kernel", "total += part[i +"},
    {"sum: one result for all blocks", sums, Fault::kRace, "sum_kernel", "] = total;"},
    {"dynamic sum: a part is not written", sums, Fault::kUnwritten, "dynamic_sum_kernel",
     "total += part[i];"},
    {"dynamic sum: an index past the memory", sums, Fault::kOutOfBounds, "dynamic_sum_kernel",
     "total += part[i];"},
    {"barriers: a barrier in a branch", barriers, Fault::kDivergentBarrier, "barriers_kernel",
     "__syncthreads();"},
    {"barriers: two branches, a barrier in each", barriers, Fault::kDivergentBarrier,
     "barriers_kernel", "// of the lower half"},
    {"barriers: a thread returns before", barriers, Fault::kDivergentBarrier, "barriers_kernel",
     "__syncthreads_count("},
    {"barriers: a block of too many threads", barriers, Fault::kLaunch, "barriers_kernel", kNoLine},
    {"lanes: a shuffle in a branch", lanes, Fault::kLanes, "lanes_kernel", "// in a branch"},
    {"lanes: a mask without the caller", lanes, Fault::kLanes, "lanes_kernel", "// of a half"},
    {"lanes: a value of a lane that is not named", lanes, Fault::kLanes, "lanes_kernel",
     "__shfl_sync(low, value"},
    {"lanes: a warp that is not whole", lanes, Fault::kLanes, "lanes_kernel", "// in a branch"},
    {"histogram: no atomic", histogram, Fault::kRace, "histogram_kernel", "bins[bin] += 1.0f;"},
    {"histogram: a plain read beside atomics", histogram, Fault::kRace, "histogram_kernel",
     "bins[200] = bins[bin];"},
    {"histogram: an atomic between two elements", histogram, Fault::kMisaligned, "histogram_kernel",
     "+ 2), 1);"},
    {"neighbours: lanes taken to be in step", neighbours, Fault::kRace, "neighbours_kernel",
     "of_lanes[threadIdx.x] += of_lanes[threadIdx.x + half];"},
    {"neighbours: a neighbour that another thread writes", neighbours, Fault::kRace,
     "neighbours_kernel", "x[threadIdx.x] = x[threadIdx.x + 1];"},
    {"copies: a wide load between its boundaries", copies, Fault::kMisaligned, "copy_kernel",
     "reinterpret_cast<const uint4*>(from)[i]"},
    {"copies: a write before the buffer", copies, Fault::kOutOfBounds, "copy_kernel",
     "out[-1] = 0.0f;"},
    {"copies: a wide load past the buffer", copies, Fault::kOutOfBounds, "copy_kernel",
     "reinterpret_cast<const Wide*>(x + 252)"},
    {"block_sum: no barrier before it", norms, Fault::kRace, "norm_kernel",
     "of_warp[threadIdx.x / kWarp] = value;"},
    {"block_sum: no barrier in it", norms, Fault::kRace, "norm_kernel", "total += of_warp[w];"},
    {"column sums: no barrier", norms, Fault::kRace, "column_sum_kernel",
     "total += sums[w][threadIdx.x];"},
    {"column sums: one column more", norms, Fault::kOutOfBounds, "column_sum_kernel",
     "out[column] = static_cast<T>(total);"},
    {"norm gradient: sums do not begin at zero", norms, Fault::kUnwritten, "norm_grad_kernel",
     "d_weight[i + w] += product;"},
    {"norm gradient: all blocks in one row", norms, Fault::kRace, "norm_grad_kernel",
     "partial[i + w] = d_weight[i + w];"},
    {"norm gradient: more shared memory than a block has", largest_norm, Fault::kLaunch,
     "norm_grad_kernel", "Acc of_warp[kWarp];"},
    {"rotation gradient: no barrier of the warp", rotations, Fault::kRace, "rotation_grad_kernel",
     "d_norms[i] = 0;"},
    {"rotation gradient: a warp returns at a value head", rotations, Fault::kDivergentBarrier,
     "rotation_grad_kernel", "__syncthreads();"},
    {"rotation gradient: no barrier of the block", rotations, Fault::kRace, "rotation_grad_kernel",
     "total += of_warps[w * 2 * d + i];"},
    {"swiglu: one pack too far", swiglus, Fault::kOutOfBounds, "gated_kernel",
     "load<kWidth>(gate_up + place.first);"},
    {"scores: every thread writes", scores, Fault::kRace, "score_kernel", "lse[row] = sums.lse();"},
    {"wide loads: any size", norms, Fault::kMisaligned, "norm_kernel",
     "Pack<T, kWidth> row = load<kWidth>(x + i);"},
    {"threads of a row: a warp that is not whole", scores, Fault::kLanes, "score_kernel",
     "__shfl_down_sync(0xffffffff, sums."},
    {"gather: one unit more", dense_rows, Fault::kRace, "gather_kernel",
     "to[place.to * row_units + i] ="},
    {"merge: no barrier of the warp", dense_rows, Fault::kRace, "merge_kernel",
     "whole_lses[row] = merged_lse;"},
    {"write: reads what it only writes", dense_rows, Fault::kUnwritten, "merge_kernel",
     "out = to[i];"},
    {"rows: any stride", spaced_rows, Fault::kMisaligned, "merge_kernel",
     "const Vector<T, kWidth> added = from[i];"}};

std::string line_of_source(const cuda_host::SourceLine& place) {
  std::ifstream file(std::string(RINGSIDE_SOURCE_DIR) + "/" + place.file);
  std::string line;
  for (int i = 0; i < place.line; ++i) {
    std::getline(file, line);
  }
  return line;
}

bool names_line(const Report& report, const std::string& part) {
  std::vector<uintptr_t> calls = report.calls;
  calls.insert(calls.end(), report.others.begin(), report.others.end());
  const auto lines = cuda_host::lines_of(calls);
  return std::any_of(lines.begin(), lines.end(), [&](const cuda_host::SourceLine& line) {
    return line_of_source(line).find(part) != std::string::npos;
  });
}

bool is_reported(const std::vector<Report>& reports, const Planted& planted) {
  return std::any_of(reports.begin(), reports.end(), [&](const Report& report) {
    return report.fault == planted.fault && report.kernel == planted.kernel &&
           (*planted.line == '\0' || names_line(report, planted.line));
  });
}

// In both orders, since a race may hide behind a read of what is not written yet.
std::vector<Report> reports_of(const Planted& planted) {
  std::vector<Report> all;
  for (const auto order : {cuda_host::Order::kForward, cuda_host::Order::kBackward}) {
    cuda_host::set_order(order);
    cuda_host::DeviceTensors device;
    try {
      planted.launches(device);
    } catch (const c10::Error&) {
      // A launch that failed.
    }
    const auto some = cuda_host::take_reports();
    all.insert(all.end(), some.begin(), some.end());
  }
  cuda_host::set_order(cuda_host::Order::kForward);
  return all;
}

TEST_CASE("every planted fault is reported with its kind, its kernel and a line") {
  at::manual_seed(2);
  for (const Planted& planted : kPlanted) {
    INFO(planted.name);
    cuda_host::plant(planted.name);
    const auto reports = reports_of(planted);
    std::string texts;
    for (const Report& report : reports) {
      texts += cuda_host::text_of(report) + "\n";
    }
    INFO(texts);
    CHECK(is_reported(reports, planted));
  }
  cuda_host::plant("");
}

TEST_CASE("launches without a planted fault are clean and right") {
  at::manual_seed(1);
  cuda_host::plant("");
  for (const auto order : {cuda_host::Order::kForward, cuda_host::Order::kBackward}) {
    cuda_host::set_order(order);
    for (const Launches& launches :
         {Launches(sums), Launches(barriers), Launches(lanes), Launches(histogram),
          Launches(neighbours), Launches(copies), Launches(norms), Launches(rotations),
          Launches(swiglus), Launches(scores), Launches(dense_rows), Launches(spaced_rows)}) {
      cuda_host::DeviceTensors device;
      launches(device);
      test::check_no_reports();
    }
  }
  cuda_host::set_order(cuda_host::Order::kForward);
}

}  // namespace
}  // namespace ringside
