// Guards the key files: what is written is read back, secrets that others may read are refused,
// nothing is overwritten, and a bad line is named by its number but never repeated.
#include <catch2/catch.hpp>
#include <fstream>

#include "rollout_bridge/transport/curve_keys.h"
#include "tests/rollout_bridge/samples.h"

namespace ringside::bridge {
namespace {

using test::TempDir;
namespace fs = std::filesystem;

fs::path write(const fs::path& path, const std::string& text) {
  std::ofstream(path) << text;
  return path;
}

TEST_CASE("a written pair is read back, secret to its owner alone", "[keys]") {
  const TempDir dir;
  const KeyPair pair = make_key_pair();
  CHECK(pair.public_key.size() == 40);
  CHECK(pair.public_key != make_key_pair().public_key);
  CHECK(public_key_of(pair.secret_key) == pair.public_key);
  const fs::path folder = dir.path() / "keys";
  write_key_pair(folder, "trainer", pair);
  CHECK((fs::status(folder / "trainer.key").permissions() & fs::perms::mask) ==
        (fs::perms::owner_read | fs::perms::owner_write));
  const KeyPair back = read_secret_key(folder / "trainer.key");
  CHECK(back.secret_key == pair.secret_key);
  CHECK(back.public_key == pair.public_key);
  CHECK(read_public_key(folder / "trainer.pub") == pair.public_key);
}

TEST_CASE("keys are never overwritten", "[keys]") {
  const TempDir dir;
  const KeyPair pair = make_key_pair();
  write_key_pair(dir.path(), "worker", pair);
  CHECK_THROWS_WITH(write_key_pair(dir.path(), "worker", make_key_pair()),
                    Catch::Contains("never overwritten"));
  fs::remove(dir.path() / "worker.key");  // a .pub alone stands in the way too
  CHECK_THROWS_WITH(write_key_pair(dir.path(), "worker", make_key_pair()),
                    Catch::Contains("worker.pub"));
  CHECK_FALSE(fs::exists(dir.path() / "worker.key"));
  CHECK(read_public_key(dir.path() / "worker.pub") == pair.public_key);
  for (const char* name : {"", ".", "..", "a/b", ".hidden"}) {
    CHECK_THROWS_AS(write_key_pair(dir.path(), name, pair), std::invalid_argument);
  }
}

TEST_CASE("a secret that others may read is refused with its mode", "[keys]") {
  const TempDir dir;
  write_key_pair(dir.path(), "w", make_key_pair());
  const fs::path path = dir.path() / "w.key";
  for (const fs::perms open : {fs::perms::group_read, fs::perms::others_read,
                               fs::perms::group_write, fs::perms::others_exec}) {
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write | open);
    CHECK_THROWS_WITH(read_secret_key(path), Catch::Contains("0600") && Catch::Contains("mode"));
  }
  fs::permissions(path, fs::perms::owner_read);
  CHECK_NOTHROW(read_secret_key(path));
  CHECK_THROWS_WITH(read_secret_key(dir.path()), Catch::Contains("regular file"));
  CHECK_THROWS_AS(read_secret_key(dir.path() / "none"), std::system_error);
}

TEST_CASE("the allow-list holds a key and its name a line", "[keys]") {
  const TempDir dir;
  const std::string a = make_key_pair().public_key;
  const std::string b = make_key_pair().public_key;
  const auto list = [&](const std::string& text) {
    return read_allowed_keys(write(dir.path() / "allowed", text));
  };
  const auto allowed = list("# the cluster\n\n" + a + "  box 1 # left \r\n  " + b + "\n");
  REQUIRE(allowed.size() == 2);
  CHECK(allowed[0].public_key == a);
  CHECK(allowed[0].name == "box 1 # left");
  CHECK(allowed[1].public_key == b);
  CHECK(allowed[1].name == "key " + b.substr(0, 8));
  CHECK(list("").empty());
  CHECK_THROWS_WITH(list(a + " x\n" + a + " y\n"),
                    Catch::Contains("line 2") && Catch::Contains("twice"));
  CHECK_THROWS_WITH(list(a + " x\n" + b + " x\n"), Catch::Contains("'x'"));
  const std::string short_key = a.substr(1);
  CHECK_THROWS_WITH(list("\n" + short_key + "\n"),
                    Catch::Contains("line 2") && !Catch::Contains(short_key));
  CHECK_THROWS_WITH(list(std::string(40, '~') + "\n"), Catch::Contains("line 1"));
  CHECK_THROWS_WITH(list("#" + a + "\n"), Catch::Contains("line 1"));  // 41 characters, no comment
  CHECK_THROWS_WITH(read_public_key(write(dir.path() / "trainer.key", a + "\n")),
                    Catch::Contains("named as a secret key"));
  CHECK_THROWS_WITH(read_public_key(write(dir.path() / "two", a + "\n" + b + "\n")),
                    Catch::Contains("2 keys"));
}

}  // namespace
}  // namespace ringside::bridge
