// How ranks exchange CPU tensors. Torch-free.
#pragma once

namespace ringside::sp {

// kAuto: shared memory in groups whose ranks are on one machine, Gloo in the others and where the
// machine refuses shared memory. kSharedMemory: an error instead.
enum class RankTransport { kAuto, kGloo, kSharedMemory };

}  // namespace ringside::sp
