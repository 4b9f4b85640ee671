#include "rl/publish/nccl_weight_group.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <nccl.h>

#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

namespace ringside::rl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLook{1};

// A communicator in NCCL's non-blocking mode, in which calls return before they have finished, so
// that each call can have a deadline.
class BoundedComm {
 public:
  BoundedComm(const ncclUniqueId& id, int64_t world_size, milliseconds timeout)
      : timeout_(timeout) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check(ncclCommInitRankConfig(&comm_, static_cast<int>(world_size), id, 0, &config), "init");
    settle("init");
  }
  ~BoundedComm() {
    if (comm_ != nullptr) ncclCommAbort(comm_);
  }
  BoundedComm(const BoundedComm&) = delete;
  BoundedComm& operator=(const BoundedComm&) = delete;

  ncclComm_t get() const { return comm_; }

  // Checks the result of a call and waits until NCCL has accepted the call.
  void taken(ncclResult_t result, const char* what) {
    check(result, what);
    settle(what);
  }

  // Waits until everything queued on the current stream is done.
  void wait_for_stream(const char* what) {
    at::cuda::CUDAEvent done;
    done.record(at::cuda::getCurrentCUDAStream());
    const auto deadline = steady_clock::now() + timeout_;
    while (!done.query()) {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(comm_, &state), what);
      check(state, what);
      if (steady_clock::now() > deadline) fail(what, "did not finish");
      std::this_thread::sleep_for(kLook);
    }
  }

 private:
  void settle(const char* what) {
    const auto deadline = steady_clock::now() + timeout_;
    for (;;) {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(comm_, &state), what);
      if (state == ncclSuccess) return;
      check(state, what);
      if (steady_clock::now() > deadline) fail(what, "was not taken in");
      std::this_thread::sleep_for(kLook);
    }
  }

  void check(ncclResult_t result, const char* what) {
    if (result != ncclSuccess && result != ncclInProgress) fail(what, ncclGetErrorString(result));
  }

  [[noreturn]] void fail(const char* what, const std::string& why) {
    if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
    throw std::runtime_error(std::string("NCCL weight group: ") + what + ": " + why + " (timeout " +
                             std::to_string(timeout_.count()) + " ms); the group was aborted");
  }

  milliseconds timeout_;
  ncclComm_t comm_ = nullptr;
};

void check_tensor(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cuda() && tensor.is_contiguous(),
              "NCCL weight group: expected contiguous CUDA tensors, got ", tensor.sizes(), " on ",
              tensor.device());
}

class VllmGroup final : public WeightGroup {
 public:
  VllmGroup(GroupStore& store, int64_t world_size, milliseconds timeout, int64_t bucket_bytes)
      : store_(store.open(world_size, timeout)),
        bucket_bytes_(bucket_bytes),
        comm_(announced_id(*store_), world_size, timeout) {
    at::Tensor warm_up = at::zeros({1}, at::TensorOptions().device(at::kCUDA).dtype(at::kFloat));
    void* data = warm_up.data_ptr();
    comm_.taken(ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, comm_.get(),
                              at::cuda::getCurrentCUDAStream()),
                "warm-up");
    comm_.wait_for_stream("warm-up");
  }

  void broadcast(std::span<const at::Tensor> tensors) override {
    std::vector<int64_t> bytes;
    for (const at::Tensor& tensor : tensors) {
      check_tensor(tensor);
      bytes.push_back(static_cast<int64_t>(tensor.nbytes()));
    }
    for (const Bucket& bucket : vllm_buckets(bytes, bucket_bytes_)) {
      std::vector<at::Tensor> parts;
      for (std::size_t i = bucket.first; i < bucket.last; ++i) {
        // Flattened before the view as bytes: a tensor without dims has no last dim for the view to
        // extend.
        parts.push_back(tensors[i].reshape({-1}).view(at::kByte));
      }
      at::Tensor packed = at::cat(parts);
      comm_.taken(ncclBroadcast(packed.data_ptr(), packed.data_ptr(),
                                static_cast<std::size_t>(bucket.bytes), ncclUint8, 0, comm_.get(),
                                at::cuda::getCurrentCUDAStream()),
                  "broadcast");
      comm_.wait_for_stream("broadcast");  // `packed` must live until it is sent
    }
  }

 private:
  static ncclUniqueId announced_id(c10d::Store& store) {
    ncclUniqueId id;
    if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess) {
      throw std::runtime_error(std::string("NCCL weight group: unique id: ") +
                               ncclGetErrorString(result));
    }
    static_assert(sizeof id.internal == kNcclIdBytes);
    announce_vllm_id(store, std::span<const uint8_t, kNcclIdBytes>(
                                reinterpret_cast<const uint8_t*>(id.internal), kNcclIdBytes));
    return id;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t bucket_bytes_;
  BoundedComm comm_;
};

class SglangGroup final : public WeightGroup {
 public:
  SglangGroup(GroupStore& store, const std::string& group_name, int64_t world_size,
              milliseconds timeout)
      : timeout_(timeout), store_(store.open(world_size, timeout)) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        custom_group_store(store_, group_name, "cuda"), 0, static_cast<int>(world_size), options);
  }

  // c10d creates the communicator at the first broadcast, on both sides.
  void broadcast(std::span<const at::Tensor> tensors) override {
    for (const at::Tensor& tensor : tensors) {
      check_tensor(tensor);
      std::vector<at::Tensor> one{tensor};
      const auto work = group_->broadcast(one, c10d::BroadcastOptions());
      const auto deadline = steady_clock::now() + timeout_;
      while (!work->isCompleted()) {
        if (steady_clock::now() > deadline) {
          group_->abort();
          throw std::runtime_error("NCCL weight group: broadcast did not finish within " +
                                   std::to_string(timeout_.count()) + " ms; the group was aborted");
        }
        std::this_thread::sleep_for(kLook);
      }
      work->wait();  // throws on failure
    }
  }

 private:
  milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

}  // namespace

std::unique_ptr<WeightGroup> make_vllm_group(GroupStore& store, int64_t world_size,
                                             milliseconds timeout, int64_t bucket_bytes) {
  return std::make_unique<VllmGroup>(store, world_size, timeout, bucket_bytes);
}

std::unique_ptr<WeightGroup> make_sglang_group(GroupStore& store, const std::string& group_name,
                                               int64_t world_size, milliseconds timeout) {
  return std::make_unique<SglangGroup>(store, group_name, world_size, timeout);
}

}  // namespace ringside::rl
