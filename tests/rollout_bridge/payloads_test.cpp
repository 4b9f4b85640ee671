// Guards how the payloads of changes travel: small ones along with the offer, those of many tensors
// in one chunk, and a wrong one at the cost of its own tensor only.
#include <catch2/catch.hpp>
#include <random>

#include "rollout_bridge/transport/zmq_io.h"
#include "rollout_bridge/weights/weight_server.h"
#include "tests/rollout_bridge/delta_driver.h"
#include "tests/rollout_bridge/driver.h"

namespace ringside::bridge {
namespace {

using namespace test;

// Many tensors with few changes each, one of them whole and one that has not changed in between.
Snapshot many_tensors(int64_t version) {
  std::vector<NamedBuffer> out;
  for (int i = 0; i < 40; ++i) {
    std::vector<uint16_t> words(500, static_cast<uint16_t>(i));
    const auto moving = static_cast<uint16_t>(version);
    if (i == 7) {
      std::fill(words.begin(), words.end(), moving);
    }
    if (i != 20) {
      words[static_cast<std::size_t>(i)] = moving;
    }
    out.push_back({"t" + std::to_string(i), "BF16", {500}, Buffer::own(words)});
  }
  return make_snapshot("run", 1, version, out);
}

TEST_CASE("payloads that are small together come in one chunk", "[delta][endpoint]") {
  const Snapshot base = many_tensors(0);
  const auto next = with_delta(base, many_tensors(1));
  WeightReceiver receiver(next->delta->manifest, {.window = 100}, base);
  std::vector<ChunkBody> asked = receiver.requests({});
  REQUIRE(asked.size() == 2);  // tensor 7 and all changes
  if (asked[0].base_version < 0) {
    std::swap(asked[0], asked[1]);
  }
  CHECK(asked[0].tensors == 40);
  CHECK(asked[1].tensor == 7);
  WeightReceiver again(next->delta->manifest, {.chunk_bytes = 200, .window = 3}, base);
  pull(again, *next);
  CHECK(again.refetched() == 0);
  CHECK(root_hash_of(named(*again.take())) == next->manifest.root_hash);

  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  TestWorker worker(trainer.rollout_address(), "a");
  trainer.publish(base);
  REQUIRE(trainer.wait_for_commit(0, 1, kPatience));
  const uint64_t before = trainer.counters().weight_bytes;
  trainer.publish(next);
  REQUIRE(trainer.wait_for_commit(1, 1, kPatience));
  CHECK(trainer.counters().weight_bytes - before == asked[0].bytes + asked[1].bytes);
  CHECK(trainer.counters().delta_refetched == 0);
}

TEST_CASE("a wrong payload among others costs its own tensor only", "[delta]") {
  const Snapshot base = many_tensors(0);
  const auto next = with_delta(base, many_tensors(1));
  auto wrong = std::make_shared<WeightDelta>(*next->delta);
  wrong->payloads[3] = Buffer::own(std::vector<uint8_t>(wrong->payloads[3].bytes.size(), 4));
  next->delta = wrong;
  WeightReceiver receiver(wrong->manifest, {}, base);
  pull(receiver, *next);
  CHECK(receiver.refetched() == 1);
  CHECK(root_hash_of(named(*receiver.take())) == next->manifest.root_hash);
}

// What the weights socket answers to a request; its type, and for a CHUNK its data's xxh3.
std::pair<MessageType, uint64_t> ask(zmq::socket_t& socket, const ChunkBody& body) {
  const Payload payload = make_payload(MessageType::kChunkRequest, body);
  const Header header{payload.type, "run", 1, "w", 1, 0};
  while (send(socket, nullptr, pack_header(header, payload), payload) != SendResult::kSent) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // not connected yet
  }
  Incoming incoming;
  while (!receive(socket, false, {}, incoming)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto message = incoming.parse({});
  REQUIRE(message.ok());
  const auto& specs = message.value().specs();
  return {message.value().header().type, specs.empty() ? 0 : specs[0].xxh3};
}

std::vector<std::byte> joined(const WeightDelta& delta) {
  std::vector<std::byte> all;
  for (const Buffer& payload : delta.payloads) {
    all.insert(all.end(), payload.bytes.begin(), payload.bytes.end());
  }
  return all;
}

TEST_CASE("payloads that come with the offer leave only whole tensors to ask for", "[delta]") {
  const Snapshot base = many_tensors(0);
  const auto next = with_delta(base, many_tensors(1));
  const auto payloads = joined(*next->delta);
  const auto asked_after = [&](const Snapshot& held, Frame offered) {
    WeightReceiver receiver(next->delta->manifest, {.window = 100}, held);
    receiver.apply_offered(offered);
    const std::vector<ChunkBody> asked = receiver.requests({});
    WeightReceiver again(next->delta->manifest, {.window = 3}, held);
    again.apply_offered(offered);
    pull(again, *next);
    CHECK(root_hash_of(named(*again.take())) == next->manifest.root_hash);
    return std::pair(asked, again.refetched());
  };
  const auto [one, refetched] = asked_after(base, payloads);
  REQUIRE(one.size() == 1);
  CHECK(one[0].tensor == 7);  // dense in the manifest
  CHECK(refetched == 0);
  CHECK(asked_after(base, Frame(payloads).subspan(1)).first.size() ==
        2);  // not the manifest's length
  CHECK(asked_after(base, {}).first.size() == 2);
  auto longer = payloads;
  longer.push_back(std::byte{0});
  CHECK(asked_after(base, longer).first.size() == 2);
  CHECK(asked_after(many_tensors(5), payloads).first.size() == 40);  // not the base: all of them
  auto damaged = payloads;
  damaged[next->delta->payloads[0].bytes.size() - 1] ^= std::byte{1};  // tensor 0's
  const auto [two, whole] = asked_after(base, damaged);
  REQUIRE(two.size() == 2);
  CHECK((two[0].tensor == 0 && two[0].base_version == -1 && two[1].tensor == 7));
  CHECK(whole == 1);
}

TEST_CASE("few changes come with their offer, many are asked for", "[delta][endpoint]") {
  const auto requests_for = [](std::size_t changes) {
    std::mt19937 rng(5);
    std::vector<uint16_t> words(1 << 20);
    for (uint16_t& word : words) {
      word = static_cast<uint16_t>(rng());
    }
    const auto at_version = [&](int64_t version) {
      return make_snapshot("run", 1, version, {{"w", "BF16", {1 << 20}, Buffer::own(words)}});
    };
    const TempDir dir;
    TestTrainer trainer(trainer_options(dir));
    TestWorker worker(trainer.rollout_address(), "a");
    const Snapshot base = at_version(0);
    trainer.publish(base);
    REQUIRE(trainer.wait_for_commit(0, 1, kPatience));
    for (std::size_t i = 0; i < changes; ++i) {
      words[rng() % words.size()] ^= 1;
    }
    const auto next = with_delta(base, at_version(1));
    const BridgeCounters before = trainer.counters();
    trainer.publish(next);
    REQUIRE(trainer.wait_for_commit(1, 1, kPatience));
    const BridgeCounters after = trainer.counters();
    CHECK(after.delta_staged == 1);
    CHECK(after.delta_refetched == 0);
    CHECK(after.weight_bytes - before.weight_bytes == joined(*next->delta).size());
    return after.weight_requests - before.weight_requests;
  };
  CHECK(requests_for(1000) == 0);
  CHECK(requests_for(200000) > 0);
}

TEST_CASE("the trainer serves runs of whole payloads and nothing else in one chunk", "[delta]") {
  const Snapshot base = many_tensors(0);
  const auto next = with_delta(base, many_tensors(1));
  uint64_t bytes = 0;
  for (std::size_t i = 2; i < 12; ++i) {
    bytes += next->delta->payloads[i].bytes.size();
  }
  zmq::context_t context;
  WeightServer server(context, "tcp://127.0.0.1:*", "run", 1, {});
  CHECK(server.serve(next) == nullptr);
  zmq::socket_t socket = connect_dealer(context, server.address(), "", {.max_frame_bytes = 1 << 20},
                                        std::chrono::milliseconds(100));
  const auto [type, hash] = ask(socket, {1, 2, 0, bytes, 0, 10});
  CHECK(type == MessageType::kChunk);
  CHECK(hash != 0);
  const auto dense = ask(socket, {1, 2, 0, 100, -1, 1});
  CHECK(dense.first == MessageType::kChunk);
  CHECK(dense.second == 0);  // the manifest has the tensor's
  const ChunkBody wrong[] = {{1, 2, 0, bytes, 0, 9},
                             {1, 2, 0, bytes, 0, 11},
                             {1, 2, 4, bytes, 0, 10},
                             {1, 2, 0, bytes - 1, 0, 10},
                             {1, 2, 0, bytes, -1, 10},
                             {1, 2, 0, bytes, 0, 0},
                             {1, 2, 0, bytes, 0, ~uint64_t{0}},
                             {1, 39, 0, bytes, 0, 2},
                             {1, 0, 0, 2000, -1, 2}};
  for (const ChunkBody& body : wrong) {
    CHECK(ask(socket, body).first == MessageType::kError);
  }
}

}  // namespace
}  // namespace ringside::bridge
