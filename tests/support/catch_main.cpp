#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "tools/commands/end_process.h"

int main(int argc, char** argv) { ringside::tools::end_process(Catch::Session().run(argc, argv)); }
