// Shapes: n/m = packed query/key rows of a varlen group, S = rows of a share or buffer, H/h = heads
// of the whole/of the part, K = KV heads, D = head dim.
#include "sp/attention/cuda/kernels.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>
#include <vector>

#include "sp/attention/cuda/cudnn_attention.h"
#include "sp/attention/cuda/exact_attention.h"
#include "sp/attention/cuda/row_kernels.h"

namespace ringside::sp {
namespace {

constexpr int64_t kVectorBytes = 16;  // bytes of one load of the flash kernel

MoveTable table_of(const DeviceMoves& moves) {
  static_assert(sizeof(RowMove) == 3 * sizeof(int64_t));
  return {reinterpret_cast<const RowMove*>(moves.table.const_data_ptr<int64_t>()),
          moves.table.size(0), moves.rows};
}

SumTable table_of(const DeviceSums& sums) {
  static_assert(sizeof(RowSum) == 4 * sizeof(int64_t));
  return {reinterpret_cast<const RowSum*>(sums.sums.const_data_ptr<int64_t>()), sums.sums.size(0),
          sums.sources.const_data_ptr<int64_t>(), sums.rows};
}

ElementType element_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return ElementType::kBFloat16;
    case at::kHalf:
      return ElementType::kFloat16;
    case at::kFloat:
      return ElementType::kFloat32;
    case at::kDouble:
      return ElementType::kFloat64;
    default:
      TORCH_CHECK(false, "CUDA attention: partial results in bf16, fp16, fp32 or fp64, got ",
                  dtype);
  }
}

PartRows part_rows(const at::Tensor& part_nhD) {
  TORCH_CHECK(part_nhD.is_cuda() && part_nhD.dim() == 3 && part_nhD.stride(2) == 1,
              "CUDA attention: a part of shape ", part_nhD.sizes(), " and strides ",
              part_nhD.strides(), " on ", part_nhD.device());
  return {part_nhD.const_data_ptr(), element_type(part_nhD.scalar_type()),
          part_nhD.stride(0),        part_nhD.stride(1),
          part_nhD.size(1),          part_nhD.size(2)};
}

WholeRows whole_rows(at::Tensor& whole_SHD, const at::Tensor& part_nhD, int64_t head_begin) {
  const auto accumulated = accumulation_dtype(part_nhD.scalar_type());
  TORCH_CHECK(whole_SHD.is_cuda() && whole_SHD.scalar_type() == accumulated &&
                  whole_SHD.is_contiguous() && whole_SHD.dim() == 3,
              "CUDA attention: results are kept in a contiguous ", accumulated, " tensor, got ",
              whole_SHD.scalar_type(), " ", whole_SHD.sizes(), " on ", whole_SHD.device());
  TORCH_CHECK(head_begin >= 0 && head_begin + part_nhD.size(1) <= whole_SHD.size(1) &&
                  part_nhD.size(2) == whole_SHD.size(2),
              "CUDA attention: a part ", part_nhD.sizes(), " at head ", head_begin, " of ",
              whole_SHD.sizes());
  return {whole_SHD.mutable_data_ptr(), whole_SHD.size(1), head_begin};
}

LseRows lse_rows(PartialAttention& whole, const PartialAttention& part) {
  const at::Tensor& lse_hn = part.lse;
  const auto accumulated = whole.out.scalar_type();
  TORCH_CHECK(whole.lse.scalar_type() == accumulated && whole.lse.is_contiguous() &&
                  whole.lse.sizes() == whole.out.sizes().slice(0, 2) &&
                  lse_hn.scalar_type() == accumulated && lse_hn.dim() == 2 &&
                  lse_hn.size(0) == part.out.size(1) && lse_hn.size(1) == part.out.size(0),
              "CUDA attention: LSE ", lse_hn.scalar_type(), " ", lse_hn.sizes(), " of a part ",
              part.out.sizes(), " into ", whole.lse.scalar_type(), " ", whole.lse.sizes());
  return {whole.lse.mutable_data_ptr(), lse_hn.const_data_ptr(), lse_hn.stride(1),
          lse_hn.stride(0)};
}

// The tensor itself when the flash kernel can read it (dense head dim, every row of every head on a
// 16 byte boundary), otherwise a contiguous copy.
at::Tensor aligned(const at::Tensor& x_nhD) {
  const int64_t vector = kVectorBytes / x_nhD.element_size();
  const bool fits = x_nhD.stride(2) == 1 && x_nhD.stride(0) % vector == 0 &&
                    x_nhD.stride(1) % vector == 0 &&
                    reinterpret_cast<uintptr_t>(x_nhD.const_data_ptr()) % kVectorBytes == 0;
  return fits ? x_nhD : x_nhD.clone(at::MemoryFormat::Contiguous);
}

// The flash kernel's dtypes, and those that exact_attention.h computes in.
bool is_flash(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }
bool is_exact(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kDouble; }

void check_call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  TORCH_CHECK(q.is_cuda() && k.is_cuda() && v.is_cuda(), "CUDA attention: tensors on ", q.device(),
              ", ", k.device(), " and ", v.device());
  const auto dtype = q.scalar_type();
  TORCH_CHECK(is_flash(dtype) && k.scalar_type() == dtype && v.scalar_type() == dtype,
              "CUDA attention: q, k and v in one of bf16 and fp16, got ", dtype, ", ",
              k.scalar_type(), " and ", v.scalar_type());
  TORCH_CHECK(q.dim() == 3 && k.dim() == 3 && k.sizes() == v.sizes() && q.size(2) == k.size(2) &&
                  k.size(1) > 0 && q.size(1) % k.size(1) == 0,
              "CUDA attention: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  TORCH_CHECK(q.size(2) % 8 == 0 && q.size(2) <= 256, "CUDA attention: head dim ", q.size(2),
              ", the kernel needs a multiple of 8 up to 256");
}

std::optional<int64_t> bound(int64_t window) {
  return window < 0 ? std::nullopt : std::make_optional(window);
}

class CudaVarlenGroupOps final : public VarlenGroupOps {
 public:
  explicit CudaVarlenGroupOps(int64_t least_cudnn_rows) : least_cudnn_rows_(least_cudnn_rows) {}

  at::DeviceType device() const override { return at::kCUDA; }

  at::ScalarType compute_dtype(at::ScalarType wire_dtype) const override {
    TORCH_CHECK(is_flash(wire_dtype) || is_exact(wire_dtype),
                "CUDA attention computes in bf16, fp16, fp32 or fp64, got ", wire_dtype);
    return wire_dtype;
  }

  std::tuple<at::Tensor, at::Tensor> attend(const at::Tensor& q_nhD, const at::Tensor& k_mKD,
                                            const at::Tensor& v_mKD, const VarlenGroupCall& call,
                                            double softmax_scale) const override {
    if (is_exact(q_nhD.scalar_type())) {
      return exact_attention(q_nhD, k_mKD, v_mKD, call, softmax_scale);
    }
    check_call(q_nhD, k_mKD, v_mKD);
    const c10::cuda::CUDAGuard guard(q_nhD.device());
    if (is_for_cudnn(q_nhD, call, least_cudnn_rows_)) {
      return cudnn_attention(q_nhD, k_mKD, v_mKD, call, softmax_scale);
    }
    const auto results = at::_flash_attention_forward(
        aligned(q_nhD), aligned(k_mKD), aligned(v_mKD), call.cumulative_query, call.cumulative_key,
        call.max_query, call.max_key, /*dropout_p=*/0.0, call.mask.causal(),
        /*return_debug_mask=*/false, softmax_scale, bound(call.mask.left), bound(call.mask.right));
    const at::Tensor& out_nhD = std::get<0>(results);
    const at::Tensor& lse_hn = std::get<1>(results);
    TORCH_CHECK(
        lse_hn.dim() == 2 && lse_hn.size(0) == q_nhD.size(1) && lse_hn.size(1) == q_nhD.size(0),
        "CUDA attention: the flash kernel returned an LSE of shape ", lse_hn.sizes(),
        ", expected [", q_nhD.size(1), ", ", q_nhD.size(0), "]");
    return {out_nhD, lse_hn};
  }

  std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_backward(
      const at::Tensor& dout_nhD, const at::Tensor& q_nhD, const at::Tensor& k_mKD,
      const at::Tensor& v_mKD, const at::Tensor& out_nhD, const at::Tensor& lse_hn,
      const VarlenGroupCall& call, double softmax_scale) const override {
    if (is_exact(q_nhD.scalar_type())) {
      return exact_attention_backward(dout_nhD, q_nhD, k_mKD, v_mKD, out_nhD, lse_hn, call,
                                      softmax_scale);
    }
    check_call(q_nhD, k_mKD, v_mKD);
    TORCH_CHECK(lse_hn.scalar_type() == at::kFloat && lse_hn.is_contiguous() && lse_hn.dim() == 2 &&
                    lse_hn.size(0) == q_nhD.size(1) && lse_hn.size(1) == q_nhD.size(0),
                "CUDA attention: backward needs a contiguous fp32 LSE [", q_nhD.size(1), ", ",
                q_nhD.size(0), "], got ", lse_hn.scalar_type(), " ", lse_hn.sizes());
    const c10::cuda::CUDAGuard guard(q_nhD.device());
    if (is_for_cudnn(q_nhD, call, least_cudnn_rows_)) {
      return cudnn_attention_backward(dout_nhD, q_nhD, k_mKD, v_mKD, out_nhD, lse_hn, call,
                                      softmax_scale);
    }
    // Used only with dropout.
    const at::Tensor rng_state = at::empty({2}, q_nhD.options().dtype(at::kUInt64));
    const at::Tensor unused = at::empty({0}, q_nhD.options());
    return at::_flash_attention_backward(
        aligned(dout_nhD.contiguous()), aligned(q_nhD), aligned(k_mKD), aligned(v_mKD),
        aligned(out_nhD.contiguous()), lse_hn, call.cumulative_query, call.cumulative_key,
        call.max_query, call.max_key, /*dropout_p=*/0.0, call.mask.causal(), rng_state, unused,
        softmax_scale, bound(call.mask.left), bound(call.mask.right));
  }

  at::Tensor gather_rows(const at::Tensor& rows, const DeviceMoves& moves) const override {
    TORCH_CHECK(rows.is_cuda() && rows.dim() >= 1, "CUDA attention: gather from ", rows.sizes(),
                " on ", rows.device());
    const c10::cuda::CUDAGuard guard(rows.device());
    // Rows are dense, at any distance.
    const bool dense = rows.size(0) > 0 && rows.stride(0) >= 0 && rows.select(0, 0).is_contiguous();
    const at::Tensor from = dense ? rows : rows.contiguous();
    std::vector<int64_t> sizes = rows.sizes().vec();
    sizes[0] = moves.rows;
    at::Tensor to = at::empty(sizes, rows.options());
    const int64_t row_bytes = moves.rows == 0 ? 0 : to.numel() / moves.rows * to.element_size();
    C10_CUDA_CHECK(gather_rows_cuda(to.mutable_data_ptr(), from.const_data_ptr(), row_bytes,
                                    from.stride(0) * from.element_size(), table_of(moves),
                                    c10::cuda::getCurrentCUDAStream()));
    return to;
  }

  void add_rows(at::Tensor& whole_SHD, const at::Tensor& part_mhD, const DeviceSums& sums,
                int64_t head_begin) const override {
    const c10::cuda::CUDAGuard guard(part_mhD.device());
    C10_CUDA_CHECK(add_rows_cuda(whole_rows(whole_SHD, part_mhD, head_begin), part_rows(part_mhD),
                                 table_of(sums), c10::cuda::getCurrentCUDAStream()));
  }

  void merge_rows(PartialAttention& whole, const PartialAttention& part, const DeviceMoves& moves,
                  int64_t head_begin) const override {
    const c10::cuda::CUDAGuard guard(part.out.device());
    C10_CUDA_CHECK(merge_rows_cuda(whole_rows(whole.out, part.out, head_begin), part_rows(part.out),
                                   lse_rows(whole, part), table_of(moves),
                                   c10::cuda::getCurrentCUDAStream()));
  }

  void write_rows(PartialAttention& whole, const PartialAttention& part, const DeviceMoves& moves,
                  int64_t head_begin) const override {
    const c10::cuda::CUDAGuard guard(part.out.device());
    C10_CUDA_CHECK(write_rows_cuda(whole_rows(whole.out, part.out, head_begin), part_rows(part.out),
                                   lse_rows(whole, part), table_of(moves),
                                   c10::cuda::getCurrentCUDAStream()));
  }

 private:
  int64_t least_cudnn_rows_;
};

}  // namespace

std::shared_ptr<const VarlenGroupOps> cuda_varlen_group_ops(int64_t least_cudnn_rows) {
  return std::make_shared<CudaVarlenGroupOps>(least_cudnn_rows);
}

std::shared_ptr<const RingStepKernels> cuda_kernels() {
  return varlen_group_kernels(cuda_varlen_group_ops());
}

}  // namespace ringside::sp
