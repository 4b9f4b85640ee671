#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/trainer/journal.h"
#include "tests/fuzz/entries.h"
#include "tests/rollout_bridge/samples.h"

namespace ringside::bridge::fuzz {
namespace {

namespace fs = std::filesystem;

void write_file(const fs::path& path, std::span<const uint8_t> bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

struct Content {
  std::vector<Rollout> rollouts;
  std::map<int64_t, int64_t> consumed;
  uint64_t file_bytes = 0;
};

Journal::Options options(const fs::path& directory) {
  Journal::Options out;
  out.directory = directory;
  out.run_id = "run";
  out.fsync = FsyncPolicy::kOff;
  out.limits.max_tokens = 4096;
  return out;
}

// nullopt: refused, with the reason in an exception of the documented kind.
std::optional<Content> read(const fs::path& directory) {
  try {
    Journal journal(options(directory));
    Content content{{}, journal.consumed().ranges(), journal.file_bytes()};
    for (Journal::Record& record : journal.take_replayed()) {
      content.rollouts.push_back(std::move(record.rollout));
    }
    return content;
  } catch (const std::runtime_error&) {
    return std::nullopt;
  }
}

void check_journal(std::span<const uint8_t> file) {
  const test::TempDir dir;
  const fs::path path = dir.path() / "journal.bin";
  write_file(path, file);
  const auto first = read(dir.path());
  if (!first) {
    return;
  }
  require(first->file_bytes == fs::file_size(path));
  for (const Rollout& r : first->rollouts) {
    require(validate(r, {}).ok());
  }
  const auto second = read(dir.path());
  require(second && second->rollouts == first->rollouts && second->consumed == first->consumed &&
          second->file_bytes == first->file_bytes);
  constexpr int64_t kGroup = 77;
  const Rollout extra = test::make_rollout(kGroup, 0, 1);
  {
    Journal journal(options(dir.path()));
    journal.reopen(kGroup);
    const Payload payload = encode_rollout(extra);
    const Header header{payload.type, "run", 1, "w", 1, 1};
    require(journal.append(kGroup, flatten(pack_header(header, payload), payload)).ok());
  }
  const auto third = read(dir.path());
  require(third && !third->rollouts.empty() && third->rollouts.back() == extra);
}

// The records of `script` with right hashes, after the magic and the run's own record.
std::vector<uint8_t> with_hashes(std::span<const uint8_t> script) {
  std::vector<uint8_t> out = {'R', 'S', 'J', 'R', 'N', 'L', '0', '1'};
  const auto put = [&](uint32_t kind, std::span<const uint8_t> payload) {
    const auto size = static_cast<uint32_t>(payload.size());
    const uint64_t hash = XXH3_64bits_withSeed(payload.data(), payload.size(), kind);
    for (const auto& [at, bytes] : {std::pair<const void*, std::size_t>{&size, sizeof size},
                                    {&kind, sizeof kind},
                                    {&hash, sizeof hash}}) {
      const auto* raw = static_cast<const uint8_t*>(at);
      out.insert(out.end(), raw, raw + bytes);
    }
    out.insert(out.end(), payload.begin(), payload.end());
  };
  const uint8_t run[] = {'r', 'u', 'n'};
  put(1, run);
  constexpr std::size_t kHead = 3;
  while (script.size() >= kHead) {
    const std::size_t said = script[1] + std::size_t{script[2]} * 256;
    const auto payload = script.subspan(kHead, std::min(said, script.size() - kHead));
    put(script[0], payload);
    script = script.subspan(kHead + payload.size());
  }
  return out;
}

}  // namespace

void journal(std::span<const uint8_t> bytes) {
  check_journal(bytes);
  check_journal(with_hashes(bytes));
}

}  // namespace ringside::bridge::fuzz
