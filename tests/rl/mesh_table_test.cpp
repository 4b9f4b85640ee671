// Guards the table of ranks that `check` prints: it must be the mesh that the program uses.
#include "rl/setup/mesh_table.h"

#include "rl/setup/model_device.h"
#include "tests/support/catch.h"

namespace ringside::rl {
namespace {

TEST_CASE("several virtual ranks of a process are refused on one GPU") {
  CHECK(rl::virtual_ranks_problem(c10::Device(c10::kCPU), 4).empty());
  CHECK(rl::virtual_ranks_problem(c10::Device(c10::kCUDA, 0), 1).empty());
  CHECK_THAT(rl::virtual_ranks_problem(c10::Device(c10::kCUDA, 0), 4),
             Catch::Contains("4 virtual ranks") && Catch::Contains("NCCL"));
}

TEST_CASE("the table shows each rank under its coordinates") {
  const auto table = mesh_table({.dp_replicate = 2, .ring = 2, .ulysses = 2, .dp_shard = 2});
  CHECK(table == std::vector<std::string>{
                     "mesh: 16 ranks; the ranks of a row share each document, the rows have "
                     "different documents",
                     "  ring                   0   0   1   1",
                     "  ulysses                0   1   0   1",
                     "  replica 0 shard 0      0   1   2   3",
                     "  replica 0 shard 1      4   5   6   7",
                     "  replica 1 shard 0      8   9  10  11",
                     "  replica 1 shard 1     12  13  14  15",
                 });
}

TEST_CASE("tensor-parallel ranks are neighbours in the table") {
  CHECK(mesh_table({.ulysses = 2, .dp_shard = 2, .tensor = 2}) ==
        std::vector<std::string>{
            "mesh: 8 ranks; the ranks of a row share each document, the rows have different "
            "documents",
            "  ulysses               0  0  1  1",
            "  tensor                0  1  0  1",
            "  shard 0               0  1  2  3",
            "  shard 1               4  5  6  7",
        });
}

TEST_CASE("the table says which ranks hold the experts between them") {
  CHECK(mesh_table({.ulysses = 4, .expert = 2}).back() ==
        "  ranks 0 to 1 hold all experts between them, and so do every further 2");
}

TEST_CASE("a large mesh is cut, one rank is a line") {
  CHECK(mesh_table({}) == std::vector<std::string>{"mesh: one rank"});
  const auto table = mesh_table({.dp_replicate = 40, .ring = 64});
  CHECK(table.size() == 1 + 1 + 16 + 1);
  CHECK(table.back() == "  ...");
  CHECK_THAT(table[2], Catch::EndsWith("  15 ..."));
}

}  // namespace
}  // namespace ringside::rl
