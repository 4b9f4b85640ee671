// Device guard of the stand-in: current device, streams and events for torch.
#pragma once

namespace ringside::standin {

// Makes it torch's guard of PrivateUse1. Call it once.
void register_guard();

}  // namespace ringside::standin
