#include "engine/device/upload.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <utility>

namespace ringside::engine {
namespace {

// Where the next tensor begins in the block: wide enough for every dtype and for vector loads.
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The tensors one after another in one pinned block.
at::Tensor pack(std::span<const at::Tensor> tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    bytes += tensor.defined() ? aligned(tensor.nbytes()) : 0;
  }
  at::Tensor block = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  auto* to = block.mutable_data_ptr<uint8_t>();
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      if (tensor.nbytes() > 0) {
        std::memcpy(to, tensor.const_data_ptr(), tensor.nbytes());
      }
      to += aligned(tensor.nbytes());
    }
  }
  return block;
}

// Views of the block in the order and with the shapes and dtypes of `like`.
std::vector<at::Tensor> unpack(const at::Tensor& block, std::span<const at::Tensor> like) {
  std::vector<at::Tensor> views;
  int64_t begin = 0;
  for (const at::Tensor& tensor : like) {
    if (!tensor.defined()) {
      views.emplace_back();
      continue;
    }
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    views.push_back(block.narrow(0, begin, bytes).view(tensor.scalar_type()).view(tensor.sizes()));
    begin += aligned(bytes);
  }
  return views;
}

}  // namespace

Upload::Upload(std::span<const at::Tensor> host, c10::Device device,
               const std::optional<c10::Stream>& stream)
    : arrived_(device.type()) {
  for (const at::Tensor& tensor : host) {
    TORCH_CHECK(!tensor.defined() || (tensor.is_cpu() && tensor.is_contiguous()),
                "upload: takes contiguous CPU tensors, got ", tensor.sizes(), " on ",
                tensor.device());
  }
  if (!stream) {
    tensors_.assign(host.begin(), host.end());
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor pinned = pack(host);
  const c10::StreamGuard on_upload_stream(*stream);
  block_ = at::empty({pinned.numel()}, at::TensorOptions().dtype(at::kByte).device(device));
  block_.copy_(pinned, /*non_blocking=*/true);
  tensors_ = unpack(block_, host);
  arrived_.record(*stream);
}

std::vector<at::Tensor> Upload::take() {
  if (block_.defined()) {
    const c10::impl::VirtualGuardImpl guard(block_.device().type());
    const c10::Stream current = guard.getStream(block_.device());
    arrived_.make_wait(current);
    // The block belongs to the upload stream's pool; it may be reused there once this stream is
    // done with it.
    guard.recordDataPtrOnStream(block_.storage().data_ptr(), current);
  }
  return std::exchange(tensors_, {});
}

}  // namespace ringside::engine
