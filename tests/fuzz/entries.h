// What a fuzzer feeds and what the replay test feeds again: one function per format, each ending in
// abort() when a rule of the format breaks. Bytes that are refused are fine.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

namespace ringside::bridge::fuzz {

// Ends the process with the place of the rule that broke.
inline void require(bool holds, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (holds) {
    return;
  }
  std::fprintf(stderr, "%s:%d: a rule of the format is broken\n", file, line);
  std::abort();
}

// A flat message (codec.h's form of frame 0 and buffers): parse_flat, parse_message on its cuts,
// every body struct.
void wire(std::span<const uint8_t> bytes);

// A ROLLOUT. The input is frame 0 and the buffers of a flat message whose lengths and hashes are
// made right before it is parsed, so that mutations reach decode_rollout and validate. What is
// accepted must encode to the same rollout again. Also split_messages and
// read_rollouts on the bytes with a right hash at the end.
void codec(std::span<const uint8_t> bytes);

// An IMAGE, whose lengths and hashes are made right before it is parsed, as it is and with the hash
// of its pixels. What is accepted is within the limits, and the pixels that come out have its hash.
void image_message(std::span<const uint8_t> bytes);

// A manifest, as it is and with its root hash made right. What is accepted must come back equal.
void manifest(std::span<const uint8_t> bytes);

// An overwrite payload applied to tensors: four bytes choose sizes and the number of changes, the
// rest is the payload as it is, and the contents of its planes, compressed here so that mutations
// reach the positions. Refused: not a byte is written. Accepted: exactly that many elements are,
// whatever the base was, and applying again changes nothing.
void delta(std::span<const uint8_t> bytes);

// A journal file as it is, and one whose records (u8 kind, u16 length, payload) get right hashes.
// What opens must open again to the same content, and take one more rollout.
void journal(std::span<const uint8_t> bytes);

// A key file, read as each of the three kinds. Keys that come out are keys, and the error about a
// secret never repeats it.
void keys(std::span<const uint8_t> bytes);

// The JSON of an inference server's answer: ids, log-probs and spans that pass are in range. Also
// as a choice of vLLM's route for prompts with images.
void answer(std::span<const uint8_t> bytes);

// A message of prime-rl's batches, as it is, and one whose columns fit together, with sizes and
// values chosen by the input. What is accepted is what the msgpack library reads out of the same
// bytes, token for token.
void prime_step(std::span<const uint8_t> bytes);

// A script of messages, ticks and calls of the owner for TrainerState: bounds hold after every
// step, every message is counted once, what it sends parses and is numbered without a gap, and no
// sample comes out twice.
void trainer(std::span<const uint8_t> bytes);

// The file of an image. What is decoded is within the limits, of the size that the head says, and
// the same a second time; what is not is refused with a reason.
void image(std::span<const uint8_t> bytes);

// A model's preprocessor_config.json. What is accepted gives sizes that its patches and tokens cut
// without a rest; a refusal names the file.
void processor(std::span<const uint8_t> bytes);

struct Format {
  const char* name;
  void (*entry)(std::span<const uint8_t>);
};
inline constexpr Format kFormats[] = {
    {"wire", wire},     {"codec", codec},           {"manifest", manifest},
    {"delta", delta},   {"journal", journal},       {"keys", keys},
    {"answer", answer}, {"prime_step", prime_step}, {"trainer", trainer},
    {"image", image},   {"processor", processor},   {"image_message", image_message}};

}  // namespace ringside::bridge::fuzz
