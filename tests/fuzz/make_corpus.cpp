// Writes the seeds of the fuzzers from valid messages: make_corpus FOLDER. Run it again after a
// change of the wire format; same code, same bytes.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "rollout_bridge/codec.h"
#include "rollout_bridge/messages.h"
#include "tests/rollout_bridge/samples.h"

namespace ringside::bridge {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& folder, const std::string& name, const std::vector<uint8_t>& bytes) {
  fs::create_directories(folder);
  std::ofstream out(folder / name, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  if (!out) throw std::runtime_error("cannot write " + (folder / name).string());
}

std::vector<uint8_t> flat(const Payload& payload) {
  return flatten(pack_header({payload.type, "run", 1, "w", 9, 1}, payload), payload);
}

template <class Body>
void message(const fs::path& folder, MessageType type, const Body& body) {
  write(folder, message_type_name(type), flat(make_payload(type, body)));
}

void write_messages(const fs::path& folder) {
  using enum MessageType;
  const std::string root(32, 'a');
  message(folder, kHello, HelloBody{4, 1, 2, root, "seed"});
  message(folder, kWelcome,
          WelcomeBody{"tcp://127.0.0.1:5", 2, root, 1000, 10000, 1 << 26, 1 << 24});
  message(folder, kReady, ReadyBody{2});
  message(folder, kCredit, CreditBody{{{0, 2, 1, 0, {0, 1}}, {7, 1, 0, 1, {0}}}});
  message(folder, kAck, AckBody{"r", "REJECTED", "limit", "why"});
  message(folder, kHeartbeat, HeartbeatBody{"ready", 2, 3, 40});
  message(folder, kStageFailed, StageFailedBody{2, "gone"});
  message(folder, kCommit, WeightsBody{2, root});
  message(folder, kChunkRequest, ChunkBody{2, 1, 4096, 100});
  message(folder, kBye, EndBody{"over"});
  message(folder, kError, ErrorBody{"fenced", "why", true, -1});
  write(folder, "ROLLOUT", flat(encode_rollout(test::make_rollout(3, 1, 2, 2))));
}

void write_corpus(const fs::path& folder) {
  write_messages(folder / "wire");
  std::vector<Rollout> batch;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    batch.push_back(test::make_rollout(seed, 1, 2, seed));
    write(folder / "codec", "rollout-" + std::to_string(seed), flat(encode_rollout(batch.back())));
  }
  std::vector<uint8_t> packed = encode_rollouts(batch);
  packed.resize(packed.size() - sizeof(uint64_t));  // the entry appends the hash
  write(folder / "codec", "batch", packed);
  const auto snapshot = make_snapshot("run", 1, 2, test::make_tensors(2, 100));
  write(folder / "manifest", "dense", encode_manifest(snapshot->manifest));
  const auto single = make_snapshot("run", 0, 0, {{"w", "U8", {0}, {}}});
  write(folder / "manifest", "empty-tensor", encode_manifest(single->manifest));
}

}  // namespace
}  // namespace ringside::bridge

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_corpus FOLDER\n";
    return 2;
  }
  ringside::bridge::write_corpus(argv[1]);
}
