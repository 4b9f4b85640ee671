// torch's hooks of the accelerator: availability, current device, pinned memory, generators, and
// the growth of storages.
#pragma once

namespace ringside::standin {

// Makes them torch's hooks of PrivateUse1. Call it once.
void register_hooks();

}  // namespace ringside::standin
