// Guards the reading of torchrun's and Slurm's variables: a rank taken from the wrong place makes
// two rank 0s, or starts N x N processes.
#include "tools/launch/rank_environment.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <string>

namespace ringside::tools {
namespace {

using Catch::Matchers::Contains;

// Sets exactly these of the variables that matter, and removes all again at the end.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    clear();
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() { clear(); }

 private:
  static void clear() {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT",
                             "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID",
                             "SLURM_JOB_ID", "SLURM_NNODES", "SLURM_STEP_NUM_NODES"}) {
      unsetenv(name);
    }
  }
};

TEST_CASE("no variables: nobody has started ranks") {
  const Environment env({});
  CHECK_FALSE(rank_environment().has_value());
}

TEST_CASE("torchrun's variables") {
  const Environment env({{"RANK", "5"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"MASTER_ADDR", "node0"},
                         {"MASTER_PORT", "29500"}});
  const auto found = rank_environment();
  REQUIRE(found);
  CHECK(found->rank == 5);
  CHECK(found->world_size == 8);
  CHECK(found->local_rank == 1);
  CHECK(found->master_addr == "node0");
  CHECK(found->master_port == 29500);
}

TEST_CASE("srun's variables on one node give every rank the same port") {
  std::map<std::string, std::string> variables = {{"SLURM_PROCID", "1"},  {"SLURM_NTASKS", "2"},
                                                  {"SLURM_LOCALID", "1"}, {"SLURM_STEP_ID", "0"},
                                                  {"SLURM_JOB_ID", "77"}, {"SLURM_NNODES", "1"}};
  int port = 0;
  {
    const Environment env(variables);
    const auto found = rank_environment();
    REQUIRE(found);
    CHECK(found->rank == 1);
    CHECK(found->world_size == 2);
    CHECK(found->master_addr == "127.0.0.1");
    port = found->master_port;
  }
  variables["SLURM_PROCID"] = "0";
  const Environment env(variables);
  CHECK(rank_environment()->master_port == port);
}

TEST_CASE("a batch script outside a step has not started ranks") {
  const Environment env({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "77"}});
  CHECK_FALSE(rank_environment().has_value());
}

TEST_CASE("incomplete or impossible sets are errors that name the variable") {
  const auto fails_with = [](const std::map<std::string, std::string>& variables,
                             const std::string& text) {
    const Environment env(variables);
    CHECK_THROWS_WITH(rank_environment(), Contains(text));
  };
  fails_with({{"RANK", "0"}}, "WORLD_SIZE is not set");
  fails_with({{"WORLD_SIZE", "2"}}, "RANK is not set");
  fails_with({{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "RANK is \"x\"");
  fails_with({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR is not set");
  fails_with({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}},
             "rank is 2, expected less than the world size 2");
  fails_with(
      {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NNODES", "2"}},
      "spans 2 nodes");
}

}  // namespace
}  // namespace ringside::tools
