// The end of a process that is linked with LibTorch.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace ringside::tools {

// Ends the process with this status as the end of main() does, but for the destructors of static
// objects: LibTorch's take its operators out of a table one by one, 0.07 s of computing, a third of
// what `ringside --version` took. Call it as main()'s last statement, when every thread has been
// joined and every object with an effect outside of the process is gone. With the address sanitizer
// it is std::exit(), at which that looks for leaks.
[[noreturn]] inline void end_process(int status) {
#ifndef __SANITIZE_ADDRESS__
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(status);
#endif
  std::exit(status);
}

}  // namespace ringside::tools
