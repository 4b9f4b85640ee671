// Planted faults on one device.
#include <ATen/ATen.h>

#include <cstring>

#include "tests/standin/planted_faults.h"
#include "tests/standin/streams.h"

namespace ringside::standin {
namespace {

at::Tensor ones() { return at::ones({4}, on_device()); }

void missing_event_before_a_side_stream_reads(bool planted) {
  const c10::Stream side = side_stream();
  const at::Tensor x = ones();
  if (!planted) {
    order(main_stream(), side);
  }
  {
    const c10::StreamGuard on(side);
    x.exp();
  }
  order(side, main_stream());
}

void missing_event_after_a_side_stream_wrote(bool planted) {
  const c10::Stream side = side_stream();
  at::Tensor x = ones();
  order(main_stream(), side);
  {
    const c10::StreamGuard on(side);
    x.mul_(2);
  }
  if (!planted) {
    order(side, main_stream());
  }
  x.exp();
}

void event_recorded_too_early(bool planted) {
  const c10::Stream side = side_stream();
  at::Tensor x = ones();
  c10::Event event = event_on(main_stream());
  x.mul_(2);
  if (!planted) {
    event.record(main_stream());
  }
  event.block(side);
  {
    const c10::StreamGuard on(side);
    x.exp();
  }
  order(side, main_stream());
}

void overwritten_while_a_side_stream_reads(bool planted) {
  const c10::Stream side = side_stream();
  at::Tensor x = ones();
  order(main_stream(), side);
  {
    const c10::StreamGuard on(side);
    x.exp();
  }
  if (!planted) {
    order(side, main_stream());
  }
  x.zero_();
  order(side, main_stream());
}

void freed_while_a_side_stream_uses_it(bool planted) {
  const c10::Stream side = side_stream();
  const at::Tensor x = ones();
  order(main_stream(), side);
  {
    const c10::StreamGuard on(side);
    x.exp();
  }
  if (!planted) {
    x.record_stream(side);
  }
}

void gathered_on_a_side_stream_and_freed_in_use(bool planted) {
  const c10::Stream side = side_stream();
  at::Tensor gathered;
  {
    const c10::StreamGuard on(side);
    gathered = ones();
  }
  order(side, main_stream());
  gathered.exp();
  if (!planted) {
    order(main_stream(), side);
  }
}

void cpu_index(bool planted) {
  const at::Tensor index = at::zeros({2}, at::kLong);
  ones().index({planted ? index : index.to(device())});
}

void cpu_mask(bool planted) {
  const at::Tensor mask = at::ones({4}, at::kBool);
  ones().masked_fill(planted ? mask : mask.to(device()), 0.0);
}

void cpu_positions_into_a_device_table(bool planted) {
  const at::Tensor positions = at::zeros({2}, at::kLong);
  at::embedding(ones().view({2, 2}), planted ? positions : positions.to(device()));
}

void two_device_indices(bool planted) {
  const at::Tensor other = at::ones({4}, on_device(1));
  ones().dot(planted ? other : other.to(device()));
}

void cpu_gradient_into_backward(bool planted) {
  const at::Tensor gradient = at::ones({4});
  (ones().requires_grad_() * 2).backward(planted ? gradient : gradient.to(device()));
}

void host_read(bool planted) {
  const at::Tensor x = ones();
  const at::Tensor read = planted ? x : x.cpu();
  volatile float value = read.const_data_ptr<float>()[1];
  (void)value;
}

void host_write(bool planted) {
  const at::Tensor x = planted ? ones() : at::ones({4});
  std::memset(x.data_ptr(), 0, x.nbytes());
}

void cpu_kernel_on_a_device_pointer(bool planted) {
  const at::Tensor x = planted ? ones() : at::ones({4});
  at::from_blob(x.data_ptr(), {4}).sum();
}

void pinned_block_reused_early(bool planted) {
  at::Tensor staging = pinned({4});
  staging.fill_(1);
  const at::Tensor first = staging.to(device(), /*non_blocking=*/true);
  if (!planted) {
    event_on(main_stream()).synchronize();
  }
  staging.fill_(2);
}

void download_read_without_a_wait(bool planted) {
  at::Tensor host = pinned({4});
  host.copy_(ones(), /*non_blocking=*/true);
  const c10::Event copied = event_on(main_stream());
  if (!planted) {
    copied.synchronize();
  }
  host.sum();
}

void download_read_after_the_wrong_event(bool planted) {
  const c10::Stream side = side_stream();
  const at::Tensor x = ones();
  at::Tensor host = pinned({4});
  order(main_stream(), side);
  const c10::Event before = event_on(side);
  {
    const c10::StreamGuard on(side);
    host.copy_(x, /*non_blocking=*/true);
  }
  const c10::Event after = event_on(side);
  (planted ? before : after).synchronize();
  host.sum();
  order(side, main_stream());
}

void offload_copy_without_an_event(bool planted) {
  const c10::Stream side = side_stream();
  const at::Tensor x = ones() * 2;
  at::Tensor host = pinned({4});
  if (!planted) {
    order(main_stream(), side);
  }
  {
    const c10::StreamGuard on(side);
    host.copy_(x, /*non_blocking=*/true);
  }
  event_on(side).synchronize();
  order(side, main_stream());
}

void one_staging_block_for_two_streams(bool planted) {
  const c10::Stream side = side_stream();
  const at::Tensor x = ones(), y = ones();
  at::Tensor host = pinned({4});
  host.copy_(x, /*non_blocking=*/true);
  order(main_stream(), side);
  at::Tensor other = planted ? host : pinned({4});
  {
    const c10::StreamGuard on(side);
    other.copy_(y, /*non_blocking=*/true);
  }
  if (planted) {  // the side stream is ordered after the first copy, the next one is not after it
    host.copy_(x, /*non_blocking=*/true);
  }
  order(side, main_stream());
  device_guard().synchronizeDevice(0);
}

void uninitialised_read(bool planted) {
  const at::Tensor x = at::empty({4}, on_device());
  if (!planted) {
    x.zero_();
  }
  x.exp();
}

void partly_initialised_read(bool planted) {
  const at::Tensor x = at::empty({4}, on_device());
  x.narrow(0, 0, planted ? 3 : 4).zero_();
  x.exp();
}

void released_storage(bool planted) {
  const at::Tensor x = ones();
  c10::StorageImpl* storage = x.storage().unsafeGetStorageImpl();
  if (planted) {
    storage->set_data_ptr_noswap(c10::DataPtr(nullptr, device()));
    storage->set_nbytes(0);
  }
  x.exp();
}

void item_in_a_layer(bool planted) {
  const NoHostWaits none(0, "layer 0");
  const at::Tensor sum = ones().sum();
  if (planted) {
    sum.item<float>();
  }
}

void hidden_sync_by_nonzero(bool planted) {
  const at::Tensor x = ones();
  const NoHostWaits none(0, "layer 0");
  planted ? x.nonzero().sum() : x.ne(0).sum();
}

void hidden_sync_by_a_mask_index(bool planted) {
  at::Tensor x = ones();
  const at::Tensor mask = x > 0, zero = at::zeros({}, on_device());
  const NoHostWaits none(0, "layer 0");
  if (planted) {
    x.index_put_({mask}, zero);
  } else {
    x.masked_fill_(mask, zero);
  }
}

void blocking_upload_in_a_micro_batch(bool planted) {
  const at::Tensor ids = planted ? at::ones({4}) : pinned({4}).fill_(1);
  const NoHostWaits none(0, "micro-batch");
  ids.to(device(), /*non_blocking=*/true);
}

void upload_that_changes_the_dtype(bool planted) {
  const at::Tensor host = pinned({4}).fill_(1);
  const NoHostWaits none(0, "micro-batch");
  if (planted) {
    host.to(device(), at::kDouble, /*non_blocking=*/true);
  } else {
    host.to(device(), /*non_blocking=*/true).to(at::kDouble);
  }
}

void cuda_operator_without_a_twin(bool planted) {
  const at::Tensor q = at::ones({3, 1, 8}, on_device());
  if (planted) {
    at::_flash_attention_forward(q, q, q, {}, {}, 3, 3, 0.0, true, false);
  } else {
    const at::Tensor x = q.view({1, 1, 3, 8});
    at::_scaled_dot_product_flash_attention_for_cpu(x, x, x);
  }
}

constexpr const char* kTwoDevices = "Expected all tensors to be on the same device";

std::vector<PlantedFault> faults_of_order() {
  const auto reported = &Evidence::reported;
  return {
      {"missing event before a side stream reads",
       reported(Fault::kUnorderedRead, "aten::exp.out on standin:0 stream"),
       missing_event_before_a_side_stream_reads},
      {"missing event after a side stream wrote",
       reported(Fault::kUnorderedRead, "not ordered after aten::mul.out on standin:0 stream"),
       missing_event_after_a_side_stream_wrote},
      {"event recorded before the kernel",
       reported(Fault::kUnorderedRead, "not ordered after aten::mul.out on standin:0 default"),
       event_recorded_too_early},
      {"overwritten while a side stream reads",
       reported(Fault::kUnorderedWrite, "aten::zero_ on standin:0 default stream writes"),
       overwritten_while_a_side_stream_reads},
      {"freed while a side stream uses it",
       reported(Fault::kFreedInUse, "is freed while aten::exp.out on standin:0 stream"),
       freed_while_a_side_stream_uses_it},
      {"gathered on a side stream and freed in use",
       reported(Fault::kFreedInUse, "is freed while aten::exp.out on standin:0 default stream"),
       gathered_on_a_side_stream_and_freed_in_use},
  };
}

std::vector<PlantedFault> faults_of_place() {
  const auto thrown = &Evidence::thrown;
  const auto fatal = &Evidence::fatal;
  return {
      {"CPU index tensor", thrown(kTwoDevices), cpu_index},
      {"CPU mask", thrown("aten::masked_fill"), cpu_mask},
      {"CPU positions into a device table", thrown("aten::index_select"),
       cpu_positions_into_a_device_table},
      {"two device indices", thrown("standin:1! (in aten::dot)"), two_device_indices},
      {"CPU gradient into a device backward", thrown("standin:0"), cpu_gradient_into_backward},
      {"host read", fatal("host code touched device memory"), host_read},
      {"host write", fatal("device standin:0"), host_write},
      {"CPU kernel on a device pointer", fatal("host code touched device memory"),
       cpu_kernel_on_a_device_pointer},
      {"CUDA operator without a twin", thrown("_flash_attention_forward has no CPU kernel"),
       cuda_operator_without_a_twin},
  };
}

std::vector<PlantedFault> faults_of_memory() {
  const auto reported = &Evidence::reported;
  const auto thrown = &Evidence::thrown;
  return {
      {"pinned block reused early",
       reported(Fault::kPinnedReusedEarly, "that upload of Float[4] on standin:0 default stream"),
       pinned_block_reused_early},
      {"download read without a wait",
       reported(Fault::kPinnedTouchedEarly, "that download of Float[4] on standin:0"),
       download_read_without_a_wait},
      {"download read after the wrong event",
       reported(Fault::kPinnedTouchedEarly, "that download of Float[4] on standin:0 stream"),
       download_read_after_the_wrong_event},
      {"offload copy without an event",
       reported(Fault::kUnorderedRead, "download of Float[4] on standin:0 stream"),
       offload_copy_without_an_event},
      {"one staging block for two streams",
       reported(Fault::kUnorderedWrite, "download of Float[4] on standin:0 default stream writes"),
       one_staging_block_for_two_streams},
      {"uninitialised read",
       reported(Fault::kUninitialisedRead, "aten::exp.out reads device memory"),
       uninitialised_read},
      {"partly initialised read",
       reported(Fault::kUninitialisedRead, "aten::exp.out reads device memory"),
       partly_initialised_read},
      {"released storage", thrown("is released"), released_storage},
  };
}

std::vector<PlantedFault> faults_of_waiting() {
  const auto reported = &Evidence::reported;
  return {
      {"item in a layer",
       reported(Fault::kForbiddenHostSync, "item waits for standin:0 inside 'layer 0'"),
       item_in_a_layer},
      {"hidden sync by nonzero",
       reported(Fault::kForbiddenHostSync, "aten::nonzero waits for standin:0 inside 'layer 0'"),
       hidden_sync_by_nonzero},
      {"hidden sync by a mask index",
       reported(Fault::kForbiddenHostSync, "waits for standin:0 inside 'layer 0'"),
       hidden_sync_by_a_mask_index},
      {"blocking upload in a micro-batch",
       reported(Fault::kForbiddenUpload, "Float[4] to standin:0 blocks the host inside"),
       blocking_upload_in_a_micro_batch},
      {"upload that changes the dtype",
       reported(Fault::kForbiddenUpload, "to standin:0 blocks the host inside 'micro-batch'"),
       upload_that_changes_the_dtype},
  };
}

}  // namespace

std::vector<PlantedFault> faults_of_one_device() {
  std::vector<PlantedFault> all;
  for (const auto& part :
       {faults_of_order(), faults_of_place(), faults_of_memory(), faults_of_waiting()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace ringside::standin
