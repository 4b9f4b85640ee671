// Guards "acknowledged means kept": what was appended is replayed after any cut of the file, after
// kill -9 and after compaction, and what a checkpoint consumed never comes back.
#include "rollout_bridge/trainer/journal.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/trainer/trainer_term.h"
#include "tests/rollout_bridge/samples.h"

namespace ringside::bridge {
namespace {

using test::make_rollout;
using test::TempDir;

Journal::Options options(const TempDir& dir) {
  Journal::Options o;
  o.directory = dir.path();
  o.run_id = "run";
  o.fsync = FsyncPolicy::kOff;
  return o;
}

Status try_append(Journal& journal, const Rollout& r) {
  const Payload payload = encode_rollout(r);
  return journal.append(r.group_id, flatten(pack_header(Header{}, payload), payload));
}

void append(Journal& journal, const Rollout& r) { REQUIRE(try_append(journal, r).ok()); }

// The operating system's files, and what of them was made durable.
class WatchedFiles final : public FileSystem {
 public:
  std::unique_ptr<File> open(const std::filesystem::path& path) override {
    return std::make_unique<Watched>(files_->open(path), *this);
  }
  std::unique_ptr<File> create(const std::filesystem::path& path) override {
    return std::make_unique<Watched>(files_->create(path), *this);
  }
  void create_directories(const std::filesystem::path& path) override {
    files_->create_directories(path);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    files_->rename(from, to);
  }
  void remove(const std::filesystem::path& path) override { files_->remove(path); }
  void sync_directory(const std::filesystem::path& path) override {
    files_->sync_directory(path);
    ++directory_syncs;
  }
  uint64_t durable_bytes = 0;
  int directory_syncs = 0;

 private:
  class Watched final : public File {
   public:
    Watched(std::unique_ptr<File> file, WatchedFiles& files)
        : file_(std::move(file)), files_(files) {}
    void lock() override { file_->lock(); }
    uint64_t size() const override { return file_->size(); }
    void append(std::span<const std::byte> bytes) override { file_->append(bytes); }
    std::size_t read_at(uint64_t offset, std::span<std::byte> out) const override {
      return file_->read_at(offset, out);
    }
    void truncate(uint64_t size) override { file_->truncate(size); }
    void sync() override {
      file_->sync();
      files_.durable_bytes = file_->size();
    }
    const std::filesystem::path& path() const override { return file_->path(); }

   private:
    std::unique_ptr<File> file_;
    WatchedFiles& files_;
  };
  std::shared_ptr<FileSystem> files_ = posix_file_system();
};

TEST_CASE("what a start replays is durable before it relies on it", "[journal]") {
  for (const FsyncPolicy fsync : {FsyncPolicy::kEvery, FsyncPolicy::kInterval, FsyncPolicy::kOff}) {
    const TempDir dir;
    {
      Journal journal(options(dir));  // a process that dies before it syncs
      journal.grant(std::array<int64_t, 1>{7});
      append(journal, make_rollout(7, 0, 2));
    }
    const auto files = std::make_shared<WatchedFiles>();
    Journal::Options o = options(dir);
    o.fsync = fsync;
    o.files = files;
    Journal journal(o);
    CHECK(journal.granted().contains(7));
    CHECK(journal.take_replayed().size() == 1);
    const bool syncs = fsync != FsyncPolicy::kOff;
    CHECK(files->durable_bytes ==
          (syncs ? std::filesystem::file_size(dir.path() / "journal.bin") : 0));
    CHECK(files->directory_syncs == (syncs ? 1 : 0));
  }
}

TEST_CASE("unconsumed rollouts are replayed in order, consumed ones are not", "[journal]") {
  const TempDir dir;
  {
    Journal journal(options(dir));
    for (int i = 0; i < 6; ++i) {
      append(journal, make_rollout(i / 2, i % 2, 2));
    }
    const int64_t done[] = {1, 40};
    journal.consume(done);
  }
  Journal journal(options(dir));
  const auto back = journal.take_replayed();
  REQUIRE(back.size() == 4);
  CHECK(back[0].rollout == make_rollout(0, 0, 2));
  CHECK(back[3].rollout == make_rollout(2, 1, 2));
  CHECK(journal.consumed().contains(1));
  CHECK(journal.consumed().contains(40));
  CHECK_FALSE(journal.consumed().contains(0));
  journal.reopen(1);
  CHECK_FALSE(journal.consumed().contains(1));
  CHECK(journal.take_replayed().empty());
}

TEST_CASE("a reopened group stays open but its old rollouts stay gone", "[journal]") {
  const TempDir dir;
  {
    Journal journal(options(dir));
    append(journal, make_rollout(3, 0, 2));
    const int64_t done[] = {3};
    journal.consume(done);
    journal.reopen(3);
    append(journal, make_rollout(3, 1, 2));
  }
  Journal journal(options(dir));
  const auto back = journal.take_replayed();
  REQUIRE(back.size() == 1);
  CHECK(back[0].rollout.sample_index == 1);
  CHECK_FALSE(journal.consumed().contains(3));
}

TEST_CASE("a file cut at any byte replays its whole records and goes on", "[journal]") {
  const TempDir dir;
  std::vector<uint64_t> ends;
  {
    Journal journal(options(dir));
    ends.push_back(journal.file_bytes());
    for (int i = 0; i < 3; ++i) {
      append(journal, make_rollout(i, 0, 1));
      ends.push_back(journal.file_bytes());
    }
  }
  const auto path = dir.path() / "journal.bin";
  std::ifstream in(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  REQUIRE(whole.size() == ends.back());
  for (std::size_t cut = 8; cut < whole.size(); cut += 7) {
    std::ofstream(path, std::ios::binary).write(whole.data(), static_cast<long>(cut));
    std::size_t expected = 0;
    while (expected + 1 < ends.size() && ends[expected + 1] <= cut) {
      ++expected;
    }
    {
      Journal journal(options(dir));
      REQUIRE(journal.take_replayed().size() == expected);
      append(journal, make_rollout(9, 0, 1));
    }
    Journal again(options(dir));
    REQUIRE(again.truncated_bytes() == 0);
    REQUIRE(again.take_replayed().size() == expected + 1);
  }
}

TEST_CASE("a file that is shorter than its magic begins anew", "[journal]") {
  for (const std::size_t length : {0, 1, 7}) {
    const TempDir dir;
    std::ofstream(dir.path() / "journal.bin", std::ios::binary)
        .write("RSJRNL01", static_cast<long>(length));
    {
      Journal journal(options(dir));  // the process died while it created the file
      CHECK(journal.truncated_bytes() == length);
      append(journal, make_rollout(1, 0, 1));
    }
    Journal journal(options(dir));
    CHECK(journal.truncated_bytes() == 0);
    CHECK(journal.take_replayed().size() == 1);
  }
}

TEST_CASE("a flipped byte cuts the file there", "[journal]") {
  const TempDir dir;
  uint64_t second = 0;
  {
    Journal journal(options(dir));
    append(journal, make_rollout(0, 0, 1));
    second = journal.file_bytes();
    append(journal, make_rollout(1, 0, 1));
    append(journal, make_rollout(2, 0, 1));
  }
  {
    std::fstream file(dir.path() / "journal.bin", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<long>(second) + 40);
    file.put('\x7f');
  }
  Journal journal(options(dir));
  CHECK(journal.truncated_bytes() > 0);
  CHECK(journal.take_replayed().size() == 1);
}

TEST_CASE("a process killed while it appends loses nothing it had finished", "[journal]") {
  const TempDir dir;
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    Journal journal(options(dir));
    for (int i = 0;; ++i) {
      append(journal, make_rollout(i, 0, 1));
      if (::write(pipe_ends[1], &i, sizeof i) != sizeof i) {
        ::_exit(1);  // the acknowledgement
      }
    }
  }
  int acknowledged = -1;
  while (acknowledged < 200) {
    REQUIRE(::read(pipe_ends[0], &acknowledged, sizeof acknowledged) > 0);
  }
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(pipe_ends[1]);
  int next = 0;
  while (::read(pipe_ends[0], &next, sizeof next) == sizeof next) {
    acknowledged = next;
  }
  ::close(pipe_ends[0]);
  Journal journal(options(dir));
  const auto back = journal.take_replayed();
  REQUIRE(back.size() >= static_cast<std::size_t>(acknowledged) + 1);
  for (int i = 0; i <= acknowledged; ++i) {
    REQUIRE(back[static_cast<std::size_t>(i)].rollout == make_rollout(i, 0, 1));
  }
}

TEST_CASE("compaction keeps the living and the memory of the consumed", "[journal]") {
  const TempDir dir;
  Journal::Options o = options(dir);
  o.compact_bytes = 1;
  {
    Journal journal(o);
    for (int i = 0; i < 40; ++i) {
      append(journal, make_rollout(i, 0, 1));
    }
    const uint64_t before = journal.file_bytes();
    for (int64_t i = 0; i < 39; ++i) {
      journal.consume(std::span(&i, 1));
    }
    CHECK(journal.file_bytes() < before / 8);
    append(journal, make_rollout(50, 0, 1));
  }
  Journal journal(o);
  const auto back = journal.take_replayed();
  REQUIRE(back.size() == 2);
  CHECK(back[0].rollout == make_rollout(39, 0, 1));
  CHECK(back[1].rollout == make_rollout(50, 0, 1));
  for (int64_t i = 0; i < 39; ++i) {
    CHECK(journal.consumed().contains(i));
  }
  CHECK(journal.consumed().ranges().size() == 1);
}

// Of a slot's rounds only some are granted: remembered for ever they would grow with the run.
TEST_CASE("granted groups are remembered until they are consumed, over compaction too",
          "[journal]") {
  const TempDir dir;
  Journal::Options o = options(dir);
  o.compact_bytes = 1;
  const auto is_right = [](const Journal& journal) {
    CHECK_FALSE(journal.granted().contains(6));
    CHECK(journal.granted().contains(8));
    CHECK(journal.granted().contains(22));
    CHECK(journal.granted().ranges().size() == 2);
  };
  {
    Journal journal(o);
    const std::vector<int64_t> granted = {0, 2, 4, 6, 8};
    journal.grant(granted);
    journal.grant(granted);
    const int64_t later = 22;
    journal.grant(std::span(&later, 1));
    for (int i = 0; i < 8; ++i) {
      append(journal, make_rollout(i, 0, 1));
    }
    const uint64_t before = journal.file_bytes();
    const std::vector<int64_t> done = {0, 1, 2, 3, 4, 5, 6, 7};
    journal.consume(done);
    CHECK(journal.file_bytes() < before);
    is_right(journal);
  }
  is_right(Journal(o));
  o.compact_bytes = 1 << 20;
  {
    Journal journal(o);
    const int64_t again = 6;
    journal.reopen(again);
    journal.grant(std::span(&again, 1));
  }
  CHECK(Journal(o).granted().contains(6));
}

TEST_CASE("at its limit the journal takes nothing, until a checkpoint makes room", "[journal]") {
  const TempDir dir;
  Journal::Options o = options(dir);
  o.max_bytes = 20000;
  int64_t taken = 0;
  {
    Journal journal(o);
    while (try_append(journal, make_rollout(taken, 0, 1)).ok()) {
      ++taken;
    }
    CHECK(journal.file_bytes() <= o.max_bytes);
    REQUIRE(taken > 8);
    const Status full = try_append(journal, make_rollout(taken, 0, 1));
    REQUIRE_FALSE(full.ok());
    CHECK(full.error().reason == Reason::kBusy);
    CHECK(full.error().detail.find("journal.bin") != std::string::npos);
    CHECK(full.error().detail.find("limit 20000") != std::string::npos);
    for (int64_t id = 0; id < taken - 2; ++id) {
      journal.consume(std::span(&id, 1));
    }
    CHECK(try_append(journal, make_rollout(taken, 0, 1)).ok());
    CHECK(journal.file_bytes() < o.max_bytes);
  }
  const auto back = Journal(o).take_replayed();
  REQUIRE(back.size() == 3);
  CHECK(back[2].rollout == make_rollout(taken, 0, 1));
}

void limit_files(rlim_t bytes) {
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = std::min(bytes, limit.rlim_max);
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

// 0: as it must be; otherwise the number of the check that failed. In a process of its own, because
// the limit is the process's.
int journal_on_a_full_disk(const Journal::Options& o) {
  std::signal(SIGXFSZ, SIG_IGN);
  Journal journal(o);
  for (int64_t id = 0; id < 4; ++id) {
    if (!try_append(journal, make_rollout(id, 0, 1)).ok()) {
      return 1;
    }
  }
  const int64_t first = 0;
  journal.consume(std::span(&first, 1));
  const uint64_t before = journal.file_bytes();
  limit_files(before + 20);  // the head of a record fits, the rest does not
  const Status full = try_append(journal, make_rollout(4, 0, 1));
  if (full.ok() || full.error().reason != Reason::kBusy) {
    return 2;
  }
  if (full.error().detail.find("journal.bin") == std::string::npos ||
      full.error().detail.find("File too large") == std::string::npos) {
    return 3;
  }
  if (std::filesystem::file_size(o.directory / "journal.bin") != before) {
    return 4;
  }
  const int64_t second = 1;
  journal.consume(std::span(&second, 1));  // no room for this record either
  journal.reopen(0);
  if (try_append(journal, make_rollout(0, 0, 1, 2)).ok()) {
    return 5;  // not before it is reopened
  }
  limit_files(RLIM_INFINITY);
  if (!try_append(journal, make_rollout(0, 0, 1, 2)).ok()) {
    return 6;
  }
  return try_append(journal, make_rollout(4, 0, 1)).ok() ? 0 : 7;
}

TEST_CASE("on a full disk the journal says so, stays whole and goes on with room", "[journal]") {
  for (const FsyncPolicy fsync : {FsyncPolicy::kOff, FsyncPolicy::kEvery}) {
    const TempDir dir;
    Journal::Options o = options(dir);
    o.fsync = fsync;
    const pid_t child = ::fork();
    if (child == 0) {
      ::_exit(journal_on_a_full_disk(o));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    Journal journal(o);
    CHECK(journal.truncated_bytes() == 0);
    CHECK(journal.consumed().contains(1));
    const auto back = journal.take_replayed();
    REQUIRE(back.size() == 4);
    CHECK(back[2].rollout == make_rollout(0, 0, 1, 2));
    CHECK(back[3].rollout == make_rollout(4, 0, 1));
  }
}

TEST_CASE("another run's journal, a foreign file and a second owner are refused", "[journal]") {
  const TempDir dir;
  {
    Journal journal(options(dir));
    CHECK_THROWS_WITH(Journal(options(dir)), Catch::Contains("held by another process"));
  }
  Journal::Options other = options(dir);
  other.run_id = "another";
  CHECK_THROWS_WITH(Journal(other), Catch::Contains("belongs to run 'run'"));
  std::ofstream(dir.path() / "journal.bin") << "something else entirely";
  CHECK_THROWS_WITH(Journal(options(dir)), Catch::Contains("not a rollout journal"));
}

TEST_CASE("trainer_term rises at each start and a damaged file is an error", "[journal]") {
  const TempDir dir;
  const auto folder = dir.path() / "state";
  CHECK(next_trainer_term(folder) == 1);
  CHECK(next_trainer_term(folder) == 2);
  CHECK(next_trainer_term(folder) == 3);
  std::ofstream(folder / "trainer_term") << "three\n";
  CHECK_THROWS_AS(next_trainer_term(folder), std::runtime_error);
}

}  // namespace
}  // namespace ringside::bridge
