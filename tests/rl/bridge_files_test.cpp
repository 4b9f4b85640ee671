// Guards the small files of RUN_DIR/bridge: starts that a run forgets or mistakes, and an endpoint
// file that is half there.
#include <catch2/catch.hpp>

#include "rl/rollouts/restart_log.h"
#include "rl/setup/endpoint_file.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;

TEST_CASE("each start's record says up to where the weights of earlier ones survive") {
  const test::TemporaryDirectory directory;
  const auto record = [&](int64_t epoch, int64_t version) {
    return rl::record_start(directory.path() / "bridge", epoch, version);
  };
  using Newest = std::map<int64_t, int64_t>;
  CHECK(record(1, 0).empty());
  CHECK(record(2, 10) == Newest{{1, 10}});
  CHECK(record(4, 14) == Newest{{1, 10}, {2, 14}});
  CHECK(record(5, 8) == Newest{{1, 8}, {2, 8}, {4, 8}});
  CHECK_THROWS_WITH(record(5, 9), Catch::Contains("trainer_term 5 after 5"));
  test::write_file(directory.path() / "bridge" / "trainer_terms", "1 0\nx 3\n");
  CHECK_THROWS_WITH(record(6, 9), Catch::Contains("trainer_terms:2"));
}

TEST_CASE("the endpoint file is read back, absent or broken is told apart") {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "endpoint.json";
  CHECK_FALSE(rl::read_endpoint_file(path).has_value());
  rl::write_endpoint_file(path, {"tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "run", 4});
  CHECK(rl::read_endpoint_file(path)->weights_address == "tcp://127.0.0.1:2");
  CHECK(rl::read_endpoint_file(path)->trainer_term == 4);
  test::write_file(path, "{");
  CHECK_THROWS_WITH(rl::read_endpoint_file(path), Catch::Contains("endpoint.json"));
}
