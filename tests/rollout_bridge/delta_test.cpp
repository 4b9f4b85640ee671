// Guards versions sent as changes: each tensor goes the shortest way, the staged bytes and their
// root are those of the dense way, and whoever lacks the base, or has a wrong one, ends there too.
#include <catch2/catch.hpp>
#include <stdexcept>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/weights/manifest_codec.h"
#include "rollout_bridge/weights/weight_receiver.h"
#include "tests/rollout_bridge/delta_driver.h"
#include "tests/rollout_bridge/driver.h"

namespace ringside::bridge {
namespace {

using namespace test;

constexpr std::size_t kElements = 50000;

// One tensor of each kind: few changes, none, all, no elements, no dims.
std::vector<NamedBuffer> sparse_tensors(int64_t version) {
  std::mt19937 rng(1);
  std::vector<uint16_t> sparse(kElements);
  for (uint16_t& w : sparse) {
    w = static_cast<uint16_t>(rng());
  }
  for (int64_t v = 1; v <= version; ++v) {  // one in a hundred anew each version
    for (std::size_t i = 0; i < kElements / 100; ++i) {
      ++sparse[rng() % kElements];
    }
  }
  std::vector<float> all(2000);
  for (float& w : all) {
    w = static_cast<float>(rng()) + static_cast<float>(version);
  }
  const auto count = static_cast<int64_t>(kElements);
  return {{"sparse", "BF16", {count / 100, 100}, Buffer::own(sparse)},
          {"still", "F64", {300}, Buffer::own(std::vector<double>(300, -0.0))},
          {"empty", "F32", {0, 7}, Buffer::own(std::vector<float>{})},
          {"all", "F32", {2000}, Buffer::own(all)},
          {"scalar", "I64", {}, Buffer::own(std::vector<int64_t>{version})}};
}

Snapshot sparse_version(int64_t version, int64_t trainer_term = 1) {
  return make_snapshot("run", trainer_term, version, sparse_tensors(version));
}

uint64_t total_bytes(const Manifest& m) { return m.tensors.back().offset + m.tensors.back().bytes; }

TEST_CASE("each tensor goes the shortest way and the root is of the new bytes", "[delta]") {
  const Snapshot base = sparse_version(3), next = sparse_version(4);
  const auto delta = make_delta(*base, *next);
  REQUIRE(delta);
  REQUIRE(validate(delta->manifest).ok());
  CHECK(delta->manifest.root_hash == next->manifest.root_hash);
  CHECK(dense_manifest(delta->manifest) == next->manifest);
  std::vector<std::string> encodings;
  for (const TensorEntry& t : delta->manifest.tensors) {
    encodings.push_back(t.encoding);
  }
  CHECK(encodings == std::vector<std::string>{"overwrite", "same", "same", "dense", "dense"});
  const auto packed = encode_manifest(delta->manifest);
  const auto back = decode_manifest(std::as_bytes(std::span(packed)));
  REQUIRE(back.ok());
  CHECK(back.value() == delta->manifest);
  CHECK_FALSE(make_delta(*next, *base));                  // backwards
  CHECK_FALSE(make_delta(*base, *sparse_version(4, 2)));  // another epoch
  CHECK_FALSE(make_delta(*make_snapshot("run", 1, 3, make_tensors(3)), *next));
}

TEST_CASE("staged changes are the dense weights bit for bit, beside an untouched base", "[delta]") {
  const Snapshot base = sparse_version(3);
  const auto next = with_delta(base, sparse_version(4));
  const WeightReceiver::Options options{.chunk_bytes = 700, .window = 3};
  WeightReceiver receiver(next->delta->manifest, options, base);
  CHECK(receiver.builds_on_base());
  const uint64_t bytes = pull(receiver, *next);
  CHECK(bytes < total_bytes(next->manifest) / 8);
  CHECK(receiver.refetched() == 0);
  const Snapshot staged = receiver.take();
  CHECK(staged->manifest == next->manifest);
  CHECK(root_hash_of(named(*staged)) == next->manifest.root_hash);
  CHECK(root_hash_of(named(*base)) == base->manifest.root_hash);
  CHECK(staged->tensors[1].bytes.data() == base->tensors[1].bytes.data());  // shared
}

TEST_CASE("without the very base everything is fetched dense", "[delta]") {
  const Snapshot base = sparse_version(3);
  const auto next = with_delta(base, sparse_version(4));
  const Snapshot others[] = {nullptr, sparse_version(2), sparse_version(3, 2),
                             make_snapshot("run", 1, 3, make_tensors(3))};
  for (const Snapshot& other : others) {
    WeightReceiver receiver(next->delta->manifest, {}, other);
    CHECK_FALSE(receiver.builds_on_base());
    CHECK(pull(receiver, *next) == total_bytes(next->manifest));
    CHECK(root_hash_of(named(*receiver.take())) == next->manifest.root_hash);
  }
}

TEST_CASE("changes that make other bytes are dropped, counted and fetched dense", "[delta]") {
  const Snapshot base = sparse_version(3);
  const auto next = with_delta(base, sparse_version(4));
  auto wrong = std::make_shared<WeightDelta>(*next->delta);
  SECTION("a payload of another version") {
    const auto other = make_delta(*base, *sparse_version(5));
    wrong->payloads[0] = other->payloads[0];
    wrong->manifest.tensors[0].changed = other->manifest.tensors[0].changed;
    wrong->manifest.tensors[0].payload_bytes = other->manifest.tensors[0].payload_bytes;
  }
  SECTION("a payload that is none") {
    wrong->payloads[0] = Buffer::own(std::vector<uint8_t>(777, 4));
    wrong->manifest.tensors[0].payload_bytes = 777;
  }
  next->delta = wrong;
  WeightReceiver receiver(wrong->manifest, {}, base);
  pull(receiver, *next);
  CHECK(receiver.refetched() == 1);
  CHECK(root_hash_of(named(*receiver.take())) == next->manifest.root_hash);
}

TEST_CASE("manifests with impossible changes are refused", "[delta]") {
  const auto delta = make_delta(*sparse_version(3), *sparse_version(4));
  const std::vector<std::function<void(Manifest&)>> breaks = {
      [](Manifest& m) { m.base_version.reset(); },
      [](Manifest& m) { m.base_version = m.version; },
      [](Manifest& m) { m.base_version = -2; },
      [](Manifest& m) { m.encoding = "dense"; },
      [](Manifest& m) { m.tensors[0].encoding = "xor"; },
      [](Manifest& m) { m.tensors[0].changed = 0; },
      [](Manifest& m) { m.tensors[0].changed = kElements + 1; },
      [](Manifest& m) { m.tensors[0].payload_bytes = 0; },
      [](Manifest& m) { m.tensors[0].payload_bytes = m.tensors[0].bytes; },
      [](Manifest& m) { m.tensors[1].changed = 1; },
      [](Manifest& m) { m.tensors[3].payload_bytes = 9; },
      [](Manifest& m) { m.tensors[2].encoding = "overwrite"; }};
  for (std::size_t i = 0; i < breaks.size(); ++i) {
    Manifest bad = delta->manifest;
    breaks[i](bad);
    CAPTURE(i);
    CHECK_FALSE(validate(bad).ok());
  }
}

// What a hostile manifest asks for is served as far as it exists; the rest is zeros.
bool pull_mutated(WeightReceiver& receiver, const WeightSnapshot& source) {
  while (!receiver.complete()) {
    for (const ChunkBody& c : receiver.requests({})) {
      const Buffer& from =
          c.base_version >= 0 ? source.delta->payloads[c.tensor] : source.tensors[c.tensor];
      std::vector<std::byte> bytes(c.bytes);
      for (std::size_t i = 0; i < bytes.size() && c.offset + i < from.bytes.size(); ++i) {
        bytes[i] = from.bytes[c.offset + i];
      }
      if (!receiver.accept(c, bytes).ok()) {
        return false;
      }
    }
  }
  return true;
}

TEST_CASE("a mutated manifest of changes is refused or ends in the right bytes", "[delta]") {
  const Snapshot base = sparse_version(3);
  const auto next = with_delta(base, sparse_version(4));
  const auto good = encode_manifest(next->delta->manifest);
  std::mt19937 rng(9);
  int pulled = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<uint8_t> bytes = good;
    bytes[rng() % bytes.size()] = static_cast<uint8_t>(rng());
    auto manifest = decode_manifest(std::as_bytes(std::span(bytes)));
    if (!manifest) {
      continue;
    }
    const std::string root = manifest.value().root_hash;
    WeightReceiver receiver(std::move(manifest).value(), {}, base);
    if (!pull_mutated(receiver, *next)) {
      continue;
    }
    ++pulled;
    REQUIRE(root_hash_of(named(*receiver.take())) == root);
  }
  CHECK(pulled > 100);
}

TEST_CASE("every so many versions one is dense for everybody", "[delta]") {
  DeltaChain chain({.full_every = 3});
  std::vector<int64_t> bases;
  for (int64_t v = 0; v < 8; ++v) {
    const Snapshot s = chain.extend(sparse_version(v));
    bases.push_back(s->delta ? *s->delta->manifest.base_version : -1);
    CHECK(s->manifest.version == v);
  }
  CHECK(bases == std::vector<int64_t>{-1, 0, 1, -1, 3, 4, -1, 6});
  DeltaChain never({.deltas = false});
  (void)never.extend(sparse_version(0));
  CHECK_FALSE(never.extend(sparse_version(1))->delta);
  CHECK_THROWS_AS(DeltaChain({.full_every = 0}), std::invalid_argument);
}

TEST_CASE("a worker at the base takes the changes, a late one the whole", "[delta][endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  DeltaChain chain({.full_every = 4});
  TestWorker a(trainer.rollout_address(), "a");
  std::vector<uint64_t> served;
  uint64_t before = 0;
  for (int64_t v = 0; v < 6; ++v) {
    trainer.publish(chain.extend(sparse_version(v)));
    REQUIRE(trainer.wait_for_commit(v, 1, kPatience));
    served.push_back(trainer.counters().weight_bytes - before);
    before += served.back();
  }
  const uint64_t whole = total_bytes(sparse_version(0)->manifest);
  for (const std::size_t anchor : {0, 4}) {
    CHECK(served[anchor] == whole);
  }
  for (const std::size_t small : {1, 2, 3, 5}) {
    CHECK(served[small] < whole / 8);
  }
  CHECK(trainer.counters().delta_staged == 4);
  CHECK(a.installed() == std::vector<int64_t>{0, 1, 2, 3, 4, 5});
  TestWorker late(trainer.rollout_address(), "late");
  REQUIRE(trainer.wait_for_commit(5, 2, kPatience));
  CHECK(trainer.counters().weight_bytes - before == whole);
  CHECK(trainer.counters().delta_staged == 4);
  trainer.publish(chain.extend(sparse_version(6)));  // both hold 5 now
  REQUIRE(trainer.wait_for_commit(6, 2, kPatience));
  CHECK(trainer.counters().delta_staged == 6);
  CHECK(trainer.counters().delta_refetched == 0);
}

TEST_CASE("changes that do not verify end in the published weights", "[delta][endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  TestWorker worker(trainer.rollout_address(), "a");
  const Snapshot base = sparse_version(0);
  trainer.publish(base);
  REQUIRE(trainer.wait_for_commit(0, 1, kPatience));
  const auto next = with_delta(base, sparse_version(1));
  auto wrong = std::make_shared<WeightDelta>(*next->delta);
  wrong->payloads[0] = Buffer::own(std::vector<uint8_t>(wrong->payloads[0].bytes.size(), 2));
  next->delta = wrong;
  trainer.publish(next);
  REQUIRE(trainer.wait_for_commit(1, 1, kPatience));
  CHECK(trainer.counters().delta_refetched == 1);
  bool told = false;
  for (const BridgeEvent& e : trainer.drain_events()) {
    told = told || e.text.find("1 tensors of version 1 dense") != std::string::npos;
  }
  CHECK(told);
  auto torn = std::make_shared<WeightSnapshot>(*sparse_version(2));
  torn->delta = wrong;  // of version 1
  CHECK_THROWS_AS(trainer.publish(torn), std::invalid_argument);
}

TEST_CASE("a worker that skipped a version gets the next one whole", "[delta][endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  const Snapshot v0 = sparse_version(0);
  trainer.publish(v0);
  TestWorker worker(trainer.rollout_address(), "a");
  REQUIRE(trainer.wait_for_commit(0, 1, kPatience));
  const uint64_t before = trainer.counters().weight_bytes;
  trainer.publish(with_delta(sparse_version(1), sparse_version(2)));
  REQUIRE(trainer.wait_for_commit(2, 1, kPatience));
  CHECK(trainer.counters().delta_staged == 0);
  CHECK(trainer.counters().weight_bytes - before == total_bytes(v0->manifest));
}

}  // namespace
}  // namespace ringside::bridge
