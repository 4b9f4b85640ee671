// Device backend of the stand-in accelerator: registers itself with the product, as CUDA's does.
#include <ATen/ATen.h>

#include "engine/device/device_backend.h"
#include "tests/support/standin/kernel_view.h"
#include "tests/support/standin/ranks.h"
#include "tests/support/standin/standin.h"

namespace ringside::test {
namespace {

// The CPU's kernels on the device's memory. A step counts as one kernel.
class StandinPreparedPlan final : public sp::PreparedPlan {
 public:
  StandinPreparedPlan(const std::shared_ptr<const sp::AttentionPlan>& plan,
                      const at::TensorOptions& wire)
      : PreparedPlan(plan, wire), cpu_(sp::cpu_kernels()->prepare(plan, wire.device(at::kCPU))) {
    upload_tables();
  }

  at::ScalarType compute_dtype() const override { return cpu_->compute_dtype(); }

  void forward(const sp::RingStepCall& call, const at::Tensor& q_ShD, const at::Tensor& kv_m2cD,
               sp::PartialAttention& result) const override {
    if (!result.out.defined()) {
      result = {at::empty(q_ShD.sizes(), q_ShD.options()),
                at::empty(q_ShD.sizes().slice(0, 2), q_ShD.options())};
    }
    standin::run_kernel("ring step", {q_ShD, kv_m2cD}, {result.out, result.lse},
                        [&](const auto& reads, const auto& writes) {
                          sp::PartialAttention here{writes[0], writes[1]};
                          cpu_->forward(call, reads[0], reads[1], here);
                        });
  }

  at::Tensor backward(const sp::RingStepCall& call, const sp::QuerySide& side,
                      const at::Tensor& kv_m2cD, at::Tensor& dq_ShD) const override {
    if (!dq_ShD.defined()) {
      dq_ShD = at::zeros(side.q_ShD.sizes(), side.lse_Sh.options());
    }
    at::Tensor dkv_g2cD =
        at::empty({plan().steps[call.step].gradient_rows, kv_m2cD.size(1), kv_m2cD.size(2)},
                  side.lse_Sh.options());
    standin::run_kernel("ring step backward",
                        {side.dout_ShD, side.q_ShD, side.out_ShD, side.lse_Sh, kv_m2cD},
                        {dq_ShD, dkv_g2cD}, [&](const auto& reads, const auto& writes) {
                          at::Tensor dq = writes[0];
                          writes[1].copy_(cpu_->backward(
                              call, {reads[0], reads[1], reads[2], reads[3]}, reads[4], dq));
                        });
    return dkv_g2cD;
  }

 private:
  std::shared_ptr<const sp::PreparedPlan> cpu_;
};

class StandinKernels final : public sp::RingStepKernels {
 public:
  at::DeviceType device() const override { return at::kPrivateUse1; }
  std::shared_ptr<const sp::PreparedPlan> prepare(std::shared_ptr<const sp::AttentionPlan> plan,
                                                  const at::TensorOptions& wire) const override {
    return std::make_shared<StandinPreparedPlan>(plan, wire);
  }
};

class StandinBackend final : public engine::DeviceBackend {
 public:
  c10::DeviceType type() const override { return at::kPrivateUse1; }
  std::string name() const override { return "standin"; }
  // None: `auto` must go on choosing the CPU in tests that do not ask for the stand-in.
  int64_t device_count() const override { return 0; }
  std::string reason_none() const override { return "tests hand out its devices themselves"; }
  std::string device_name(int64_t /*index*/) const override { return "stand-in"; }
  std::vector<std::string> describe() const override { return {}; }
  sp::ProcessGroups::Connect tensor_groups(const sp::Mesh& /*mesh*/,
                                           const sp::GroupRendezvous& /*rendezvous*/,
                                           c10::Device /*device*/) const override {
    TORCH_CHECK(false, "the stand-in's groups are those of run_standin_ranks()");
  }
  std::shared_ptr<const sp::RingStepKernels> attention_kernels(
      const engine::ProductPlan& /*products*/) const override {
    return std::make_shared<StandinKernels>();
  }
};

const engine::DeviceBackendRegistration kRegistration(std::make_unique<StandinBackend>());

}  // namespace
}  // namespace ringside::test
