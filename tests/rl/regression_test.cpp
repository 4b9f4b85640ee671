#include "tests/support/catch.h"
TEST_CASE("placeholder") { CHECK(true); }
