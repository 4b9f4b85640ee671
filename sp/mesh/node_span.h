// What a sequence-parallel group that spans nodes is. Torch-free.
#pragma once

namespace ringside::sp {

// An error, or a warning (group_scope.h).
enum class GroupScope { kLocalNode, kGlobal };

}  // namespace ringside::sp
