// Tensors of several devices in one operator are refused, with the operator's name.
#include <functional>
#include <vector>

#include "tests/standin/streams.h"
#include "tests/support/catch.h"

namespace ringside::standin {
namespace {

struct MixUp {
  const char* name;
  std::function<void(const at::Tensor& there, const at::Tensor& here)> run;
};

at::Tensor cpu_ids() { return at::zeros({2}, at::kLong); }

std::vector<MixUp> mix_ups() {
  using T = const at::Tensor&;
  return {
      {"add", [](T d, T c) { at::add(d, c); }},
      {"add_ of a CPU tensor", [](T d, T c) { c.clone().add_(d); }},
      {"mul_ of a device tensor", [](T d, T c) { d.clone().mul_(c); }},
      {"mm(device, cpu)", [](T d, T c) { at::mm(d, c); }},
      {"mm(cpu, device)", [](T d, T c) { at::mm(c, d); }},
      {"linear", [](T d, T c) { at::linear(d, c); }},
      {"embedding", [](T d, T) { at::embedding(d, cpu_ids()); }},
      {"index_select", [](T d, T) { at::index_select(d, 0, cpu_ids()); }},
      {"index", [](T d, T) { d.index({cpu_ids()}); }},
      {"index_put_", [](T d, T c) { d.clone().index_put_({cpu_ids()}, c.narrow(0, 0, 2)); }},
      {"cat",
       [](T d, T c) {
         at::cat({d, c});
       }},
      {"where", [](T d, T c) { at::where(c.gt(0), d, d); }},
      {"masked_fill", [](T d, T c) { at::masked_fill(d, c.gt(0), 0.0); }},
      {"gather",
       [](T d, T) {
         at::gather(d, 0, at::zeros({4, 4}, at::kLong));
       }},
      {"scatter_add_",
       [](T d, T) {
         at::zeros_like(d).scatter_add_(0, at::zeros({4, 4}, at::kLong), d);
       }},
      {"attention",
       [](T d, T c) {
         const at::Tensor q = d.view({1, 1, 4, 4}), k = c.view({1, 1, 4, 4});
         at::_scaled_dot_product_flash_attention_for_cpu(q, k, q);
       }},
      {"_foreach_add_",
       [](T d, T c) {
         at::_foreach_add_(std::vector<at::Tensor>{d.clone()}, std::vector<at::Tensor>{c});
       }},
      {"_fused_adamw_",
       [](T d, T c) {
         std::vector<at::Tensor> p{d.clone()}, g{c.clone()}, m{d.clone()}, v{d.clone()};
         at::_fused_adamw_(p, g, m, v, {}, {at::ones({}, d.options())}, 1e-3, 0.9, 0.99, 0, 1e-8,
                           false, false);
       }},
      {"mm over two device indices", [](T d, T) { at::mm(d, d.to(device(1))); }},
      {"add over two device indices", [](T d, T) { at::add(d, d.to(device(1))); }},
      {"backward with a CPU gradient",
       [](T d, T) {
         (d.detach().clone().requires_grad_() * 2).backward(at::ones({4, 4}));
       }},
  };
}

TEST_CASE("every mix of devices is refused with both devices named") {
  Scope scope;
  const at::Tensor there = at::randn({4, 4}, on_device()), here = at::randn({4, 4});
  for (const MixUp& one : mix_ups()) {
    INFO(one.name);
    const std::string error = error_of([&] { one.run(there, here); });
    INFO(error);
    CHECK(error.find("standin") != std::string::npos);
    CHECK(error.find("device") != std::string::npos);
  }
}

TEST_CASE("CPU tensors without dimensions pass, as on CUDA") {
  Scope scope;
  const at::Tensor there = at::ones({4}, on_device());
  CHECK((there + at::scalar_tensor(2.0)).sum().item<float>() == 12);
  CHECK(at::mul(there, 3.0).sum().item<float>() == 12);
  CHECK(scope.text() == "");
}

TEST_CASE("the stand-in is the process's accelerator and has a fixed number of devices") {
  Scope scope;
  CHECK(at::getAccelerator() == at::kPrivateUse1);
  CHECK(device_guard().deviceCount() == kDevices);
  CHECK(at::ones({1}, on_device()).device().str() == "standin:0");
  CHECK_THROWS(at::ones({1}, at::TensorOptions().device(at::Device(at::kPrivateUse1, kDevices))));
  CHECK_THROWS(device(kDevices));
}

}  // namespace
}  // namespace ringside::standin
