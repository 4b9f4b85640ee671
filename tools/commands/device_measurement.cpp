#include "tools/commands/device_measurement.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "sp/attention/attention.h"
#include "sp/plan/attention_plan.h"

namespace ringside::tools {
namespace {

constexpr double kEnoughSeconds = 0.3;
constexpr int64_t kMessageBytes = int64_t{64} << 20;
constexpr auto kTransferTimeout = std::chrono::seconds(60);

// Seconds of a transfer of kMessageBytes, and of one of next to nothing.
struct Transfers {
  double whole = 0.0;
  double nothing = 0.0;
};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Waits for the device: a value on the host depends on everything before.
void wait_for(const at::Tensor& tensor) { (void)tensor.flatten()[0].item(); }

// The best of a few tries, at a size that takes long enough to measure. flops_of and prepare take
// the size; prepare returns what is measured.
double flops_per_s(int64_t size, const std::function<double(int64_t)>& flops_of,
                   const std::function<std::function<void()>(int64_t)>& prepare) {
  std::function<void()> run = prepare(size);
  run();  // allocations, threads
  double seconds = seconds_of(run);
  while (seconds < kEnoughSeconds && size < 16384) {
    size *= 2;
    run = prepare(size);
    run();
    seconds = seconds_of(run);
  }
  for (int i = 0; i < 2; ++i) {
    seconds = std::min(seconds, seconds_of(run));
  }
  return flops_of(size) / seconds;
}

// Numbers of a computation: a GPU multiplies zeros and ones faster.
at::Tensor drawn(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::randn(sizes, options.dtype(at::kFloat)).to(options);
}

double attention_flops_per_s(const at::TensorOptions& options) {
  const sp::HeadShape heads{8, 2, 128};
  const auto groups = sp::single_rank_groups(options.device());
  const auto prepare = [&](int64_t tokens) -> std::function<void()> {
    const auto plan = std::make_shared<const sp::AttentionPlan>(
        sp::plan_attention(sp::SequenceLayout({tokens}, 1, 1), heads, 0));
    const auto kernels = engine::device_backend(options.device().type()).attention_kernels({});
    const auto make = [&](int64_t h) {
      return drawn({tokens, h, heads.head_dim}, options).set_requires_grad(true);
    };
    const at::Tensor q = make(heads.num_query_heads), k = make(heads.num_kv_heads),
                     v = make(heads.num_kv_heads),
                     dout = drawn({tokens, heads.num_query_heads, heads.head_dim}, options);
    sp::AttentionOptions scaled;
    scaled.softmax_scale = 0.088;
    const sp::AttentionContext context{kernels->prepare(plan, options),
                                       groups.tensors(sp::axes::kUlysses),
                                       groups.tensors(sp::axes::kRing)};
    return [=] {
      sp::attention(q, k, v, context, scaled).backward(dout);
      wait_for(q.grad());
    };
  };
  const auto flops = [&](int64_t tokens) {
    return 3.5 * 4 * 0.5 * static_cast<double>(tokens) * static_cast<double>(tokens + 1) *
           static_cast<double>(heads.num_query_heads * heads.head_dim);
  };
  return flops_per_s(512, flops, prepare);
}

double gemm_flops_per_s(const at::TensorOptions& options) {
  const at::NoGradGuard no_grad;
  const auto prepare = [&](int64_t n) -> std::function<void()> {
    const at::Tensor a = drawn({n, n}, options), b = drawn({n, n}, options);
    return [=] { wait_for(at::mm(a, b)); };
  };
  return flops_per_s(
      512, [](int64_t n) { return 2.0 * static_cast<double>(n * n) * static_cast<double>(n); },
      prepare);
}

double memory_bytes_per_s(const at::TensorOptions& options) {
  const at::Tensor bytes = at::ones({kMessageBytes}, options.dtype(at::kFloat));
  constexpr int kReads = 8;  // one wait for several, which is long beside one on a GPU
  const auto read = [&] {
    at::Tensor sum;
    for (int i = 0; i < kReads; ++i) {
      sum = bytes.sum();
    }
    wait_for(sum);
  };
  read();
  double seconds = 1e9;
  for (int i = 0; i < 3; ++i) {
    seconds = std::min(seconds, seconds_of(read));
  }
  return kReads * static_cast<double>(bytes.nbytes()) / seconds;
}

// One of two ranks, which are threads: sends to the other and receives at the same time.
Transfers measure_transfers(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                            c10::Device device) {
  const sp::Mesh mesh({1, 2, 1}, rank);
  const auto groups = engine::connect_groups(mesh, {store, "127.0.0.1", kTransferTimeout}, device);
  sp::Communicator& ring = *groups.tensors(sp::axes::kRing);
  const auto options = at::TensorOptions(at::kByte).device(device);
  const auto best_of = [&](int64_t bytes) {
    const at::Tensor send = at::zeros({bytes}, options);
    at::Tensor receive = at::zeros({bytes}, options);
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {  // the first connects
      best = std::min(best, seconds_of([&] {
                        ring.send_recv(send, 1 - rank, receive, 1 - rank, "measure")->wait();
                        wait_for(receive);
                      }));
    }
    return best;
  };
  const double whole = best_of(kMessageBytes);
  return {whole, best_of(1)};
}

// Sets transfer_seconds and intra_node_bytes_per_s.
void measure_loopback(c10::DeviceType type, sp::DeviceSpeeds& speeds) {
  // c10d's flight recorder keeps one unlocked map for the whole process: the groups of two threads
  // corrupt it.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  Transfers seconds[2];
  std::exception_ptr errors[2];
  {
    std::vector<std::jthread> ranks;
    for (int64_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          const auto index = static_cast<c10::DeviceIndex>(rank);
          seconds[rank] = measure_transfers(
              store, rank, type == c10::kCPU ? c10::Device(type) : c10::Device(type, index));
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
  speeds.transfer_seconds = std::max(seconds[0].nothing, seconds[1].nothing);
  speeds.intra_node_bytes_per_s =
      static_cast<double>(kMessageBytes) / std::max(seconds[0].whole, seconds[1].whole);
}

}  // namespace

sp::DeviceSpeeds measure_device(c10::Device device, std::vector<std::string>& notes) {
  const engine::DeviceBackend& backend = engine::device_backend(device.type());
  const bool cpu = device.is_cpu();
  const sp::DeviceSpeeds* known = sp::find_device(backend.device_name(0));
  sp::DeviceSpeeds speeds = known != nullptr ? *known : *sp::find_device(cpu ? "CPU" : "A100");
  speeds.name = backend.device_name(0);
  const auto wide = at::TensorOptions(at::kFloat).device(device);
  const auto narrow = cpu ? wide : wide.dtype(at::kBFloat16);
  speeds.attention_flops_per_s = attention_flops_per_s(narrow);
  speeds.gemm_flops_per_s = gemm_flops_per_s(narrow);
  speeds.wide_flops_per_s = cpu ? speeds.attention_flops_per_s
                                : std::min(attention_flops_per_s(wide), gemm_flops_per_s(wide));
  speeds.memory_bytes_per_s = memory_bytes_per_s(wide);
  if (cpu || backend.device_count() > 1) {
    measure_loopback(device.type(), speeds);
  } else {
    notes.push_back(
        "transfers on this machine are not measured: it has one device; the figure is " +
        std::string(known != nullptr ? "the table's" : "the A100's"));
  }
  if (!cpu) {
    speeds.ranks_per_node = backend.device_count();
  }
  notes.push_back("transfers to another machine are not measured: the figure is " +
                  std::string(known != nullptr ? "the table's" : "an assumption") +
                  "; correct it in the file if you know better");
  return speeds;
}

}  // namespace ringside::tools
