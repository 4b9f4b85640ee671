// torch's hooks of the accelerator: availability, current device, pinned memory, generators, and
// the growth of storages.
#pragma once

namespace ringside::standin {

void register_hooks();

}  // namespace ringside::standin
