#include "engine/device/device_sums.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace ringside::engine {
namespace {

// figure = combine(figure, values), or values alone when the figure is new.
template <class Combine>
void merge(std::map<std::string, at::Tensor>& figures, const std::string& name,
           const at::Tensor& values, Combine combine) {
  const at::NoGradGuard no_grad;
  const at::Tensor mine = values.detach().to(at::kDouble).view({-1});
  const auto [figure, is_new] = figures.try_emplace(name, mine);
  if (!is_new) {
    TORCH_CHECK(figure->second.numel() == mine.numel(), "device sums: ", name, " has ",
                figure->second.numel(), " figures, got ", mine.numel());
    figure->second = combine(figure->second, mine);
  }
}

}  // namespace

void DeviceSums::add(const std::string& name, const at::Tensor& values) {
  merge(figures_, name, values, [](const at::Tensor& a, const at::Tensor& b) { return a + b; });
}

void DeviceSums::maximise(const std::string& name, const at::Tensor& values) {
  merge(figures_, name, values,
        [](const at::Tensor& a, const at::Tensor& b) { return at::maximum(a, b); });
}

HostSums DeviceSums::fetch() const {
  HostSums result;
  if (figures_.empty()) {
    return result;
  }
  std::vector<at::Tensor> all;
  for (const auto& [name, values] : figures_) {
    all.push_back(values);
  }
  const at::Tensor host = at::cat(all).to(at::kCPU);
  const double* next = host.const_data_ptr<double>();
  for (const auto& [name, values] : figures_) {
    result[name].assign(next, next + values.numel());
    next += values.numel();
  }
  return result;
}

}  // namespace ringside::engine
