// Compute context: device and dtypes of every tensor of a rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>

#include "engine/device/product_plan.h"

namespace ringside::engine {

struct Sharding;  // engine/params/sharding.h
struct ExpertSharding;
struct Pipeline;  // engine/models/pipeline.h
struct TensorSharding;

// Plain data; copies are independent, but share what the pointers point to.
struct ComputeContext {
  c10::Device device = c10::Device(c10::kCPU);
  at::ScalarType compute = at::kFloat;  // of activations and of the weights cast for use
  at::ScalarType master = at::kFloat;   // of stored parameters, optimizer moments and gradients
  at::ScalarType reduce = at::kFloat;   // in which gradients are sent and summed
  // How parameters are cut over ranks; null = every rank holds all of them.
  std::shared_ptr<const Sharding> sharding = nullptr;
  // Expert parallelism; null = every rank computes with all experts, which are cut as all others.
  std::shared_ptr<const ExpertSharding> experts = nullptr;
  // Tensor parallelism; null = every rank computes with whole matrices. Needs `sharding`.
  std::shared_ptr<const TensorSharding> tensor = nullptr;
  // How the model's layers are divided over ranks; null = this rank computes all of them.
  std::shared_ptr<const Pipeline> pipeline = nullptr;
  // What lives in host memory: the optimizer's moments; master weights, gradients and moments, with
  // the optimizer on the host (needs `sharding`); besides these the copy in the compute dtype.
  bool host_moments = false;
  bool host_master = false;
  bool host_values = false;
  // Of layers on the CPU; the same on every rank.
  ProductPlan products = {};

  ComputeContext() = default;
  // Derives the dtypes from a compute dtype: fp64 keeps masters and sums in fp64, all others in
  // fp32. Implicit: a dtype alone means a context on the CPU.
  // Throws: c10::Error unless compute_dtype is kFloat, kBFloat16, kHalf or kDouble.
  ComputeContext(at::ScalarType compute_dtype,  // NOLINT(google-explicit-constructor)
                 c10::Device compute_device = c10::Device(c10::kCPU));

  // Of activations and of weights cast for use.
  at::TensorOptions compute_options() const {
    return at::TensorOptions().device(device).dtype(compute);
  }
  // Of master weights and gradients.
  at::TensorOptions master_options() const {
    return host_master ? host_options(master) : at::TensorOptions().device(device).dtype(master);
  }
  // Of the optimizer's moments.
  at::TensorOptions moment_options() const {
    return host_moments || host_master ? host_options(master)
                                       : at::TensorOptions().device(device).dtype(master);
  }
  // Of host memory that exchanges data with the device: pinned, unless the device is the CPU.
  at::TensorOptions host_options(at::ScalarType dtype) const {
    return at::TensorOptions().dtype(dtype).pinned_memory(!device.is_cpu());
  }
};

}  // namespace ringside::engine
