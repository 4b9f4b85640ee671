// torch's allocators over the stand-in's device and pinned memory.
#pragma once

#include <c10/core/Allocator.h>

namespace ringside::standin {

// Tensors' memory on the current device, filled with NaN, and on the host. They live as long as the
// process.
// Throws: std::runtime_error from allocate() when the address space is used up.
c10::Allocator& device_allocator();
c10::Allocator& pinned_allocator();

// Makes them torch's allocators of PrivateUse1 and of its pinned memory.
void register_allocators();

}  // namespace ringside::standin
