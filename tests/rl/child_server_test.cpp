// Guards servers that a worker starts: a command line that a path breaks, a server that outlives
// its worker or leaves children behind, a start that fails or hangs and is taken for a server.
#include "rl/worker/child_server.h"

#include <signal.h>

#include <fstream>

#include "rl/worker/restart_route.h"
#include "tests/rl/served_run.h"

using namespace ringside;
using namespace ringside::test;

namespace {

// The number a shell wrote into the file, once it has.
pid_t pid_in(const std::filesystem::path& path) {
  pid_t pid = 0;
  (void)eventually([&] { return static_cast<bool>(std::ifstream(path) >> pid); });
  return pid;
}

bool is_gone(pid_t pid) {
  return eventually([&] { return ::kill(pid, 0) != 0; });
}

// A client whose server nobody started.
class Nobody final : public bridge::InferenceServer {
 public:
  bridge::Status connect() override { return health(); }
  bridge::Status check_sampling(const bridge::SamplingSettings&) const override {
    return bridge::Success{};
  }
  bridge::Result<bridge::GenerateResult> generate(const bridge::GenerateRequest&) override {
    return gone();
  }
  bridge::Status pause(bridge::PausePolicy) override { return gone(); }
  bridge::Status load_weights_from_disk(const std::string&, int64_t) override { return gone(); }
  bridge::Status resume() override { return gone(); }
  bridge::Status health() override { return gone(); }
  bridge::Result<std::string> weight_version() override { return gone(); }
  bridge::Capabilities capabilities() const override { return {}; }

 private:
  static bridge::Error gone() { return {bridge::Reason::kClosed, "nobody there"}; }
};

}  // namespace

TEST_CASE("child server: model and port are filled in, whatever the path holds") {
  CHECK(rl::filled_command("serve -m {model} -p {port} {model}", "/a b/it's", 80) ==
        R"(serve -m '/a b/it'\''s' -p 80 '/a b/it'\''s')");
  CHECK(rl::port_of("http://127.0.0.1:8000") == 8000);
  CHECK(rl::port_of("http://host:81/prefix:9") == 81);
  CHECK(rl::port_of("http://host") == 80);
  for (const char* url : {"http://host:", "http://host:0", "http://host:70000", "http://host:8x"}) {
    CHECK_THROWS_AS(rl::port_of(url), std::invalid_argument);
  }
}

TEST_CASE("child server: it ends with its children when the worker lets go") {
  const TempDir dir;
  const auto file = dir.path() / "pid";
  pid_t grandchild = 0;
  {
    rl::ChildServer child("sh -c 'sleep 1000 & echo $! >" + file.string() + "; wait'");
    grandchild = pid_in(file);
    REQUIRE(grandchild > 0);
    CHECK_FALSE(child.ended());
  }
  CHECK(is_gone(grandchild));
}

TEST_CASE("child server: one that ends says how") {
  rl::ChildServer failed("sh -c 'exit 3'");
  REQUIRE(eventually([&] { return failed.ended().has_value(); }));
  CHECK(failed.ended() == "exited with status 3");
  rl::ChildServer killed("sh -c 'kill -9 $$'");
  REQUIRE(eventually([&] { return killed.ended().has_value(); }));
  CHECK(killed.ended() == "was killed by signal 9");
}

TEST_CASE("child server: it dies with the thread that started it") {
  const TempDir dir;
  const auto file = dir.path() / "pid";
  std::unique_ptr<rl::ChildServer> child;
  std::thread([&] {
    child = std::make_unique<rl::ChildServer>("sh -c 'echo $$ >" + file.string() +
                                              "; exec sleep 1000'");
    REQUIRE(pid_in(file) > 0);
  }).join();
  REQUIRE(eventually([&] { return child->ended().has_value(); }));
  CHECK(child->ended() == "was killed by signal 9");
}

TEST_CASE(
    "restart route: a command that ends, or never serves, is an error; without one there is no "
    "route") {
  ServedRun run;
  rl::Config config = run.config();
  config.rollout.server_options.load_timeout_s = 0.5;
  rl::ShadowModel shadow(config);
  shadow.install(run.weights(1));
  Nobody nobody;
  const auto load = [&](const std::string& command) {
    config.rollout.server_options.start_command = command;
    return rl::make_restart_route(config)->load(nobody, run.weights(1), shadow);
  };
  const auto ended = load("sh -c 'test -f {model}/config.json && exit 4'");
  REQUIRE_FALSE(ended);
  CHECK(ended.error().reason == bridge::Reason::kClosed);
  CHECK_THAT(ended.error().detail, Catch::Contains("exited with status 4"));
  const auto silent = load("sleep 1000");
  REQUIRE_FALSE(silent);
  CHECK(silent.error().reason == bridge::Reason::kTimeout);
  CHECK_THROWS_AS(load(""), std::runtime_error);
}
