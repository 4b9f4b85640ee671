// Device guard of the stand-in: current device, streams and events for torch.
#pragma once

namespace ringside::standin {

void register_guard();

}  // namespace ringside::standin
