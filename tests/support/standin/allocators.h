// torch's allocators over the stand-in's device and pinned memory.
#pragma once

#include <c10/core/Allocator.h>

namespace ringside::standin {

c10::Allocator& device_allocator();
c10::Allocator& pinned_allocator();

// Makes them torch's allocators of PrivateUse1 and of its pinned memory.
void register_allocators();

}  // namespace ringside::standin
