// Writes the seeds of the fuzzers from valid messages: make_corpus FOLDER. Run it again after a
// change of the wire format; same code, same bytes.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/transport/curve_keys.h"
#include "rollout_bridge/weights/manifest_codec.h"
#include "tests/rollout_bridge/samples.h"

namespace ringside::bridge {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& folder, const std::string& name, const std::vector<uint8_t>& bytes) {
  fs::create_directories(folder);
  std::ofstream out(folder / name, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  if (!out) {
    throw std::runtime_error("cannot write " + (folder / name).string());
  }
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
  message(folder, kCredit, CreditBody{{{0, 2, 1, 0, {0, 1}}, {7, 1, 0, 1, {0}}}, -1, {{7, {0}}}});
  message(folder, kAck, AckBody{"r", "REJECTED", "limit", "why"});
  message(folder, kHeartbeat, HeartbeatBody{"ready", 2, 3, 40});
  message(folder, kStageFailed, StageFailedBody{2, "gone"});
  message(folder, kCommit, WeightsBody{2, root});
  message(folder, kChunkRequest, ChunkBody{2, 1, 4096, 100});
  message(folder, kBye, EndBody{"over"});
  message(folder, kError, ErrorBody{"fenced", "why", true, -1});
  message(folder, kImageAck, ImageAckBody{root, "REFUSED", "checksum", "why", 100});
  write(folder, "IMAGE", flat(encode_image(test::make_picture(2, 3, 1))));
  write(folder, "ROLLOUT", flat(encode_rollout(test::make_rollout(3, 1, 2, 2))));
}

// Images, and messages that are nearly images: of other shapes, with pixels to match.
void write_images(const fs::path& folder) {
  for (uint32_t seed = 0; seed < 3; ++seed) {
    write(folder, "picture-" + std::to_string(seed),
          flat(encode_image(test::make_picture(2 + seed, 3, seed))));
  }
  const auto shaped = [&](const std::string& name, std::vector<int64_t> shape, std::size_t bytes) {
    Payload payload = make_payload(MessageType::kImage, ImageBody{std::string(32, 'a')});
    payload.add("rgb", "U8", std::move(shape), Buffer::own(std::vector<uint8_t>(bytes, 7)));
    write(folder, name, flat(payload));
  };
  shaped("two-channels", {2, 3, 2}, 12);
  shaped("rows", {6, 3}, 18);
  shaped("empty", {0, 4, 3}, 0);
  shaped("long", {300, 1, 3}, 900);
}

// Contents of planes as the delta entry takes them: sizes, then gaps and new values byte by byte.
void write_deltas(const fs::path& folder) {
  write(folder, "u8", {0, 8, 0, 3, 0, 1, 2, 7, 8, 9});
  write(folder, "bf16", {1, 16, 0, 2, 3, 11, 1, 2, 3, 4});
  write(folder, "f32-wide-gaps", {2 | 4, 0, 2, 2, 1, 200, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8});
  write(folder, "f64-all", {3 | 8, 1, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8});
  // A payload as it is: one byte of four changes, gap 0 and value 7 in raw zstd blocks.
  write(folder, "payload",
        {0,    4, 0, 1, 1, 10, 0,    0,    0,    10,   0,    0, 0, 0x28, 0xb5, 0x2f, 0xfd,
         0x20, 1, 9, 0, 0, 0,  0x28, 0xb5, 0x2f, 0xfd, 0x20, 1, 9, 0,    0,    7});
}

// Records as the journal entry takes them: kind, length, payload.
void write_journals(const fs::path& folder) {
  std::vector<uint8_t> script;
  const auto put = [&](uint8_t kind, const std::vector<uint8_t>& payload) {
    script.insert(script.end(), {kind, static_cast<uint8_t>(payload.size() % 256),
                                 static_cast<uint8_t>(payload.size() / 256)});
    script.insert(script.end(), payload.begin(), payload.end());
  };
  const auto range = [](uint8_t begin, uint8_t end) {
    std::vector<uint8_t> out(16);
    out[0] = begin;
    out[8] = end;
    return out;
  };
  put(2, flat(encode_rollout(test::make_rollout(3, 0, 2))));
  put(2, flat(encode_rollout(test::make_rollout(4, 1, 2, 2))));
  put(3, range(3, 4));
  put(4, range(3, 4));
  write(folder, "records", script);
  write(folder, "ranges", [&] {
    script.clear();
    put(3, range(0, 200));
    put(4, range(7, 9));
    return script;
  }());
}

void write_text(const fs::path& folder, const std::string& name, const std::string& text) {
  write(folder, name, {text.begin(), text.end()});
}

void write_texts(const fs::path& folder) {
  // The pair of ZeroMQ's own documentation of Z85 keys.
  const std::string secret = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6";
  const std::string open = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
  write_text(folder / "keys", "secret", secret + "\n");
  write_text(folder / "keys", "list", "# workers\n\n" + open + " box one\r\n" + secret + "\n");
  write_text(folder / "answer", "full",
             R"({"ids":[1,2],"logprobs":[-0.5,-1e3],"prompt":[7],"version":"12",)"
             R"("spans":[{"version":"1","begin":0,"end":1},{"version":"2","begin":1,"end":2}]})");
  write_text(folder / "answer", "tokens",
             R"({"finish_reason":"stop","token_ids":[5,6],"logprobs":{"content":[)"
             R"({"token":"token_id:5","logprob":-0.5},{"token":"token_id:6","logprob":-1.25}]}})");
  write_text(folder / "processor", "qwen3_vl",
             R"({"image_processor_type":"Qwen2VLImageProcessorFast","patch_size":16,)"
             R"("merge_size":2,"size":{"shortest_edge":65536,"longest_edge":16777216},)"
             R"("image_mean":[0.5,0.5,0.5],"image_std":[0.5,0.5,0.5],"rescale_factor":0.00392})");
  write_text(folder / "processor", "small",
             R"({"patch_size":4,"temporal_patch_size":1,"min_pixels":64,"max_pixels":4096})");
  write_text(folder / "answer", "odd",
             R"({"ids":[18446744073709551615,-1,1.5,null],"logprobs":[null]})");
}

// Two sequences of prime-rl's, the second padded, with the first `fields` of a micro-batch's 20.
std::vector<uint8_t> prime_message(uint32_t fields) {
  msgpack::sbuffer buffer;
  msgpack::packer<msgpack::sbuffer> packer(buffer);
  packer.pack_array(1);
  packer.pack_array(fields);
  packer.pack(std::vector<int>{5, 6, 70000, 5, 8, 1});                         // input_ids
  packer.pack(std::vector<bool>{false, true, true, false, true, false});       // loss_mask
  packer.pack(std::vector<double>{0, 0.5, 0.5, 0, -1.25, 0});                  // advantages
  packer.pack(std::vector<double>{0, -0.5, -1.5, 0, -2, 0});                   // inference_logprobs
  packer.pack(std::vector<int>{0, 1, 2, 0, 1, 0});                             // position_ids
  packer.pack(std::vector<int>{3, 3});                                         // sequence_lengths
  packer.pack(std::vector<double>{0.75, 0.75, 0.75, 1, 1, 1});                 // temperatures
  packer.pack(std::vector<std::string>{"env", "env", "env", "e2", "e2", ""});  // env_names
  packer.pack(std::vector<int>{3, 3});                                         // seq_lens
  const std::vector<double> zeros(6, 0.0), ones(6, 1.0);
  for (uint32_t field = 9; field < fields; ++field) {
    if (field == 12 || field == 14 || field == 15) {
      packer.pack(zeros);
    } else if (field == 13) {
      packer.pack(ones);
    } else if (field == 17) {
      packer.pack(std::vector<std::string>{"trace-1", ""});
    } else if (field == 18) {
      packer.pack(std::vector<int>{2, -1});
    } else {
      packer.pack_nil();
    }
  }
  return {buffer.data(), buffer.data() + buffer.size()};
}

void write_prime_steps(const fs::path& folder) {
  write(folder, "required", prime_message(9));
  write(folder, "all", prime_message(20));
  // As the entry writes messages: batches, then for each its fields, sequences, lengths, tokens,
  // advantages, optional fields.
  write(folder, "script", {1,  11, 2, 2, 40, 41, 49, 3, 56, 57,   65, 2, 8, 16, 24, 32, 40, 48,
                           56, 1,  0, 0, 1,  1,  1,  1, 0,  0x21, 1,  1, 0, 1,  1,  16, 17});
}

// One byte an operation and what it takes, see trainer_entry.cpp: join, ready, grants, rollouts.
void write_scripts(const fs::path& folder) {
  const std::vector<uint8_t> join = {0x77, 0, 0, 4, 0x67, 0, 0};  // HELLO w0/1 (type 0), READY
  std::vector<uint8_t> session = {6, 0, 0, 6, 1, 0, 0x66, 0, 0, 4, 0x68, 0, 0};
  for (const uint8_t how : {0, 1, 3, 16}) {
    session.insert(session.end(), {0x6a, 0, 0, 0, how});
  }
  session.insert(session.end(), {5, 1, 1, 2, 0, 0x20, 200});
  write(folder, "session", session);
  write(folder, "join", join);
}

void write_corpus(const fs::path& folder) {
  write_deltas(folder / "delta");
  write_journals(folder / "journal");
  write_texts(folder);
  write_scripts(folder / "trainer");
  write_prime_steps(folder / "prime_step");
  write_messages(folder / "wire");
  write_images(folder / "image_message");
  std::vector<FlatRollout> batch;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    const Rollout rollout = test::make_rollout(seed, 1, 2, seed);
    write(folder / "codec", "rollout-" + std::to_string(seed), flat(encode_rollout(rollout)));
    batch.push_back(flatten_rollout(rollout));
  }
  for (uint32_t seed = 0; seed < 3; ++seed) {
    const Image picture = test::make_picture(2 + seed, 3, seed);
    const Rollout rollout =
        test::with_pictures(test::make_rollout(seed, 1, 2, seed), {picture, picture});
    write(folder / "codec", "pictures-" + std::to_string(seed), flat(encode_rollout(rollout)));
  }
  std::vector<uint8_t> packed = join_messages(batch);
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
