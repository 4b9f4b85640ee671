// Before a test program's first case: LibTorch's vector mathematics.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include "sp/mesh/vector_math.h"
#include "tests/support/catch.h"

namespace {

struct PrepareVectorMath : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testRunStarting(const Catch::TestRunInfo& /*run*/) override {
    ringside::sp::prepare_vector_math();
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(PrepareVectorMath)
