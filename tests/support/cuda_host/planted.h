// Faults that a test plants into kernels, by name and one at a time.
#pragma once

#include <string_view>

namespace ringside::cuda_host {

// From now on the fault of this name is there, and no other; none for an empty name.
void plant(std::string_view fault);

// Whether it is there. Kernels ask; the compiler does not instrument it.
bool planted(std::string_view fault);

}  // namespace ringside::cuda_host
