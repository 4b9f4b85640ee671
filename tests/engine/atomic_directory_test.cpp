// A checkpoint that a crash leaves half-written, or that vanishes while it is being replaced, costs
// a run: the directory must appear whole or not at all.
#include "engine/io/atomic_directory.h"

#include <catch2/catch.hpp>

#include "tests/support/temporary_directory.h"

namespace ringside::engine {
namespace {

namespace fs = std::filesystem;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;

std::size_t entries_in(const fs::path& dir) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(dir), {}));
}

TEST_CASE("AtomicDirectory: nothing has the name before commit, everything after") {
  const TemporaryDirectory dir;
  const fs::path target = dir.path() / "runs" / "checkpoint";
  {
    AtomicDirectory directory(target);
    fs::create_directory(directory.path() / "trainer");
    write_file(directory.path() / "trainer" / "state", "1");
    CHECK_FALSE(fs::exists(target));
    directory.commit();
    CHECK(read_file(target / "trainer" / "state") == "1");
  }
  CHECK(read_file(target / "trainer" / "state") == "1");
  CHECK(entries_in(target.parent_path()) == 1);
}

TEST_CASE("AtomicDirectory: without commit nothing stays, and an older directory does") {
  const TemporaryDirectory dir;
  const fs::path target = dir.path() / "checkpoint";
  fs::create_directory(target);
  write_file(target / "state", "old");
  {
    AtomicDirectory directory(target);
    write_file(directory.path() / "state", "new");
  }
  CHECK(read_file(target / "state") == "old");
  CHECK(entries_in(dir.path()) == 1);
}

TEST_CASE("AtomicDirectory: commit replaces an older directory whole") {
  const TemporaryDirectory dir;
  const fs::path target = dir.path() / "checkpoint";
  fs::create_directory(target);
  write_file(target / "state", "old");
  write_file(target / "only-in-old", "x");
  AtomicDirectory directory(target.string() + "/");  // the same name, spelt otherwise
  write_file(directory.path() / "state", "new");
  directory.commit();
  CHECK(read_file(target / "state") == "new");
  CHECK_FALSE(fs::exists(target / "only-in-old"));
  CHECK(entries_in(dir.path()) == 1);
}

TEST_CASE("AtomicDirectory: what a dead process of the same id left behind is not mixed in") {
  const TemporaryDirectory dir;
  const fs::path target = dir.path() / "checkpoint";
  fs::path left_behind;
  {
    const AtomicDirectory directory(target);
    left_behind = directory.path();
  }
  fs::create_directory(left_behind);
  write_file(left_behind / "stale", "x");
  AtomicDirectory directory(target);
  directory.commit();
  CHECK(entries_in(target) == 0);
}

}  // namespace
}  // namespace ringside::engine
