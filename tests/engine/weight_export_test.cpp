// Guards: a rank that waits for ever in a gather because another rank's disk is full; ranks that go
// on as if the weights were written; bytes that depend on how the model is spread over ranks.
#include "engine/models/weight_export.h"

#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/io/hf_directory.h"
#include "engine/params/sharding.h"
#include "sp/mesh/rank_work.h"
#include "tests/support/assertion_lock.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTimeout{4000};  // of a collective: a rank that waits for ever fails
constexpr milliseconds kRound{100};

// The model of random_decoder(tiny_config(), fp32, 1), spread over all ranks of a replica.
Decoder sharded_decoder(const sp::ProcessGroups& groups) {
  const sp::CpFsdpMode all = sp::CpFsdpMode::kAll;
  ComputeContext context(at::kFloat);
  context.sharding = std::make_shared<const Sharding>(
      Sharding{groups.tensors(sp::axes::fsdp(all)), groups.tensors(sp::axes::without_fsdp(all))});
  Decoder decoder(test::tiny_config(), context);
  const Decoder whole = test::random_decoder(test::tiny_config(), at::kFloat, 1);
  const auto from = whole.units();
  const auto to = decoder.units();
  for (std::size_t u = 0; u < to.size(); ++u) {
    for (std::size_t i = 0; i < to[u]->specs().size(); ++i) {
      assign(to[u]->storage(), i, from[u]->view(i));
    }
    to[u]->changed();
  }
  return decoder;
}

std::string read_weights(const std::filesystem::path& dir) {
  std::ifstream file(dir / "model.safetensors", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What export_weights() says on this rank; "" if nothing.
std::string failure_of_export(const Decoder& decoder, const WeightSink& sink,
                              sp::Communicator& world) {
  try {
    export_weights(decoder, sink, world, kRound);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

sp::MeshShape sharded_over(int64_t ranks, int64_t copies = 1) {
  sp::MeshShape shape;
  shape.dp_shard = ranks;
  shape.dp_replicate = copies;
  return shape;
}

TEST_CASE("a sharded model is exported with the bytes of the whole one, to any rank that asks") {
  const test::TemporaryDirectory dir;
  const auto path = [&](const std::string& name) {
    std::filesystem::create_directories(dir.path() / name);
    return dir.path() / name;
  };
  save_decoder(test::random_decoder(test::tiny_config(), at::kFloat, 1), path("whole"),
               at::kBFloat16);
  const std::string expected = read_weights(path("whole"));
  REQUIRE(expected.size() > 1000);
  test::run_ranks(sharded_over(2, 2), [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    const Decoder decoder = sharded_decoder(groups);
    sp::Communicator& world = *groups.control(sp::axes::kLoss);
    for (const int64_t asks : {0, 1, 3}) {
      const auto to = path("rank" + std::to_string(asks));
      export_weights(decoder, mesh.rank() == asks ? model_files(to, at::kBFloat16) : WeightSink(),
                     world, kRound);
      const auto lock = test::assertion_lock();
      CHECK(read_weights(to) == expected);
    }
  });
}

TEST_CASE("a sink that throws in the middle ends the export on every rank and hangs none") {
  const int64_t taken = GENERATE(0, 1, 2);  // units before the disk is full
  std::array<std::string, 2> failures;
  std::array<std::size_t, 2> units_later{};
  test::run_ranks(
      sharded_over(2),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        const Decoder decoder = sharded_decoder(groups);
        sp::Communicator& world = *groups.control(sp::axes::kLoss);
        const auto full_disk = [&](UnitExport& units) {
          for (int64_t i = 0; i < taken; ++i) {
            REQUIRE(units.next());
          }
          throw std::runtime_error("no space left on device");
        };
        failures[mesh.rank()] = failure_of_export(
            decoder, mesh.rank() == 0 ? WeightSink(full_disk) : WeightSink(), world);
        // No collective is left half done: the next export has every unit.
        export_weights(
            decoder,
            [&](UnitExport& units) {
              while (const auto unit = units.next()) {
                units_later[mesh.rank()] += unit->specs().empty() ? 0 : 1;
              }
            },
            world, kRound);
      },
      kTimeout);
  CHECK(failures == std::array<std::string, 2>{"no space left on device", "rank 0 has failed"});
  const std::size_t all = test::random_decoder(test::tiny_config(), at::kFloat, 1).units().size();
  CHECK(units_later == std::array<std::size_t, 2>{all, all});
}

TEST_CASE("without a sink nothing is gathered; without sharding the others only wait") {
  test::run_ranks(sharded_over(2), [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    const Decoder sharded = sharded_decoder(groups);
    const Decoder whole = test::random_decoder(test::tiny_config(), at::kFloat, 1);
    sp::Communicator& world = *groups.control(sp::axes::kLoss);
    const auto gathered = [&] {
      int64_t bytes = 0;
      for (const auto& [tag, sent] : sharded.context().sharding->shard->sent_bytes()) {
        bytes += sent;
      }
      return bytes;
    };
    const int64_t before = gathered();
    export_weights(sharded, {}, world, kRound);
    const int64_t without_sink = gathered();
    int64_t units = 0;
    export_weights(whole,
                   mesh.rank() == 0 ? WeightSink([&](UnitExport& all) {
                     while (all.next()) {
                       ++units;
                     }
                   })
                                    : WeightSink(),
                   world, kRound);
    const int64_t without_sharding = gathered();
    export_weights(
        sharded, [](UnitExport&) {}, world, kRound);
    const auto lock = test::assertion_lock();
    CHECK(units == (mesh.rank() == 0 ? static_cast<int64_t>(whole.units().size()) : 0));
    CHECK(without_sink == before);
    CHECK(without_sharding == before);
    CHECK(gathered() > before);
    CHECK_THROWS_WITH(export_weights(sharded, [](UnitExport&) {}),
                      Catch::Contains("whole on this rank"));
  });
}

}  // namespace
}  // namespace ringside::engine
