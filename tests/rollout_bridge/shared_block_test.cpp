// Guards weights that a worker on the trainer's machine takes out of its memory: only what is safe
// to map is mapped, what was read is verified like everything else, and the wire remains behind it.
#include "rollout_bridge/weights/shared_block.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <system_error>

#include "tests/rollout_bridge/delta_driver.h"
#include "tests/rollout_bridge/driver.h"

namespace ringside::bridge {
namespace {

using namespace test;

constexpr std::size_t kBytes = 600000;  // above a chunk, no multiple of a page

TEST_CASE("another mapping shows what the block holds and lives on without it", "[shared]") {
  auto block = std::make_unique<SharedBlock>(kBytes);
  block->bytes()[0] = std::byte{7};
  block->bytes()[kBytes - 1] = std::byte{9};
  SharedViews views;
  const auto view = views.open(block->place());
  REQUIRE(view.ok());
  const auto bytes = view.value()->bytes();
  REQUIRE(bytes.size() == kBytes);
  CHECK((bytes[0] == std::byte{7} && bytes[kBytes - 1] == std::byte{9}));
  block->bytes()[1] = std::byte{3};
  CHECK(bytes[1] == std::byte{3});
  block.reset();
  views.clear();
  CHECK(bytes[1] == std::byte{3});
}

TEST_CASE("places that cannot be mapped safely are refused", "[shared]") {
  const SharedBlock block(kBytes);
  const auto refusal = [&](auto change) {
    SharedPlace place = block.place();
    change(place);
    const auto view = SharedViews().open(place);
    REQUIRE_FALSE(view.ok());
    return view.error().reason;
  };
  CHECK(refusal([](SharedPlace& p) { p.host = "elsewhere"; }) == Reason::kUnsupported);
  CHECK(refusal([](SharedPlace& p) { p.host = ""; }) == Reason::kUnsupported);
  CHECK(refusal([](SharedPlace& p) { p.pid = -1; }) == Reason::kInvalidField);
  CHECK(refusal([](SharedPlace& p) { p.fd = -1; }) == Reason::kInvalidField);
  CHECK(refusal([](SharedPlace& p) { p.bytes = 0; }) == Reason::kInvalidField);
  CHECK(refusal([](SharedPlace& p) { ++p.bytes; }) == Reason::kInvalidField);
  CHECK(refusal([](SharedPlace& p) { p.fd = 1 << 20; }) == Reason::kGone);
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  CHECK(refusal([&](SharedPlace& p) { p.fd = pipe[0]; }) == Reason::kInvalidField);
  const int open_end = ::memfd_create("test", MFD_ALLOW_SEALING);  // may shrink while it is read
  REQUIRE(::ftruncate(open_end, kBytes) == 0);
  CHECK(refusal([&](SharedPlace& p) { p.fd = open_end; }) == Reason::kInvalidField);
  REQUIRE(::fcntl(open_end, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  SharedPlace sealed = block.place();
  sealed.fd = open_end;
  CHECK(SharedViews().open(sealed).ok());
  for (const int fd : {pipe[0], pipe[1], open_end}) {
    ::close(fd);
  }
}

TEST_CASE("a block comes back for the next version of its size", "[shared]") {
  SharedBlocks blocks;
  auto first = blocks.take(kBytes);
  const auto* memory = first->bytes().data();
  const auto second = blocks.take(kBytes);
  CHECK(second->bytes().data() != memory);
  first.reset();
  first = blocks.take(kBytes);
  CHECK(first->bytes().data() == memory);
  const SharedPlace place = first->place();
  first.reset();
  const auto other = blocks.take(kBytes / 2);  // the model is another one: what is idle goes
  CHECK_FALSE(SharedViews().open(place).ok());
}

TEST_CASE("a block is mapped once, another one under its number anew", "[shared]") {
  SharedViews views;
  auto block = std::make_unique<SharedBlock>(kBytes);
  const SharedPlace place = block->place();
  const auto first = views.open(place);
  REQUIRE(first.ok());
  CHECK(views.open(place).value() == first.value());
  block.reset();
  block = std::make_unique<SharedBlock>(kBytes);
  REQUIRE(block->place().fd == place.fd);  // the lowest that is free
  block->bytes()[5] = std::byte{42};
  const auto second = views.open(block->place());
  REQUIRE(second.ok());
  CHECK(second.value() != first.value());
  CHECK(second.value()->bytes()[5] == std::byte{42});
}

TEST_CASE("no block beyond the limit of a file's size", "[shared]") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = kBytes - 1;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
  CHECK_THROWS_AS(SharedBlock(kBytes), std::system_error);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
}

// Two tensors in one block; the second never changes.
Snapshot in_block(SharedBlocks& blocks, int64_t version) {
  const auto block = blocks.take(kBytes);
  std::mt19937 rng(static_cast<uint32_t>(version));
  const std::size_t half = kBytes / 2;
  for (std::size_t i = 0; i < kBytes; ++i) {
    block->bytes()[i] = i < half ? static_cast<std::byte>(rng()) : std::byte{1};
  }
  const auto count = static_cast<int64_t>(half);
  return make_snapshot("run", 1, version,
                       {{"a", "U8", {count}, {block, block->bytes().first(half)}},
                        {"b", "U8", {count}, {block, block->bytes().subspan(half)}}},
                       block);
}

TEST_CASE("a snapshot lies in its block as the manifest counts", "[shared]") {
  SharedBlocks blocks;
  const Snapshot good = in_block(blocks, 0);
  std::vector<NamedBuffer> tensors = named(*good);
  std::swap(tensors[0], tensors[1]);
  CHECK_THROWS_AS(make_snapshot("run", 1, 0, tensors, good->shared), std::invalid_argument);
  CHECK_THROWS_AS(make_snapshot("run", 1, 0, make_tensors(0), good->shared), std::invalid_argument);
}

TEST_CASE("a worker beside the trainer needs no wire for weights, one elsewhere does",
          "[shared][endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  TestWorker beside(trainer.rollout_address(), "beside");
  SharedBlocks blocks;
  DeltaChain chain({.full_every = 100});
  for (int64_t version = 0; version < 4; ++version) {
    trainer.publish(chain.extend(in_block(blocks, version)));
    REQUIRE(trainer.wait_for_commit(version, 1, kPatience));
  }
  BridgeCounters counters = trainer.counters();
  CHECK(counters.shared_staged == 4);
  CHECK(counters.weight_requests == 0);
  CHECK(counters.weight_bytes == 0);
  CHECK(beside.installed() == std::vector<int64_t>{0, 1, 2, 3});
  WorkerOptions elsewhere = worker_options(trainer.rollout_address(), "elsewhere");
  elsewhere.shared_memory = false;
  TestWorker other(elsewhere, {});
  REQUIRE(trainer.wait_for_commit(3, 2, kPatience));
  counters = trainer.counters();
  CHECK(counters.shared_staged == 4);
  CHECK(counters.weight_bytes == kBytes);
}

TEST_CASE("memory that holds other bytes by now sends the worker to the wire",
          "[shared][endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  TestWorker worker(trainer.rollout_address(), "a");
  SharedBlocks blocks;
  const Snapshot whole = in_block(blocks, 0);
  auto moved =
      std::make_shared<WeightSnapshot>(*whole);  // its bytes elsewhere, the block overwritten
  for (Buffer& tensor : moved->tensors) {
    tensor = Buffer::own(std::vector<std::byte>(tensor.bytes.begin(), tensor.bytes.end()));
  }
  std::fill(whole->shared->bytes().begin(), whole->shared->bytes().end(), std::byte{1});
  trainer.publish(moved);
  REQUIRE(trainer.wait_for_commit(0, 1, kPatience));
  const BridgeCounters counters = trainer.counters();
  CHECK(counters.shared_staged == 0);
  CHECK(counters.weight_bytes > kBytes / 2);  // the first tensor, and what was not read by then
}

}  // namespace
}  // namespace ringside::bridge
