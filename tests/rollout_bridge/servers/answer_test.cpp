// What is refused before anything is sent, and labels of versions.
#include "rollout_bridge/servers/answer.h"

#include "rollout_bridge/servers/llama_cpp.h"
#include "tests/rollout_bridge/servers/contract.h"

namespace ringside::bridge::test {
namespace {

TEST_CASE("servers: a version and its label are one to one") {
  CHECK(version_of_label("7") == 7);
  CHECK(version_of_label("0") == 0);
  for (const char* label : {"", "default", "07", "-1", "7 ", "7.0", "99999999999999999999"}) {
    INFO(label);
    CHECK_FALSE(version_of_label(label));
  }
}

TEST_CASE("servers: a request out of range is refused, and nothing is sent") {
  const auto refused = [](const std::string& field, const auto& edit) {
    ExchangeServer server({});
    LlamaCppServer client(server.options());
    GenerateRequest request = request_at(1.0, {});
    edit(request);
    const auto result = client.generate(request);
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::kInvalidField);
    CHECK_THAT(result.error().detail, Catch::Contains(field));
    CHECK(server.calls() == 0);
  };
  refused("prompt_ids", [](GenerateRequest& r) { r.prompt_ids.clear(); });
  refused("prompt_ids holds 1000", [](GenerateRequest& r) { r.prompt_ids[1] = 1000; });
  refused("stop_ids holds -1", [](GenerateRequest& r) { r.stop_ids = {-1}; });
  refused("max_tokens", [](GenerateRequest& r) { r.max_tokens = 0; });
  refused("request_id", [](GenerateRequest& r) { r.request_id.clear(); });
  refused("cache_salt", [](GenerateRequest& r) { r.cache_salt.clear(); });
  refused("temperature", [](GenerateRequest& r) { r.sampling.temperature = 0; });
  refused("temperature", [](GenerateRequest& r) { r.sampling.temperature = INFINITY; });
  refused("top_p", [](GenerateRequest& r) { r.sampling.top_p = NAN; });
  refused("top_p", [](GenerateRequest& r) { r.sampling.top_p = 1.5; });
  refused("top_k", [](GenerateRequest& r) { r.sampling.top_k = -1; });
}

TEST_CASE("servers: an image out of its prompt or of another shape is refused") {
  const auto refused = [](const std::string& why, const auto& edit) {
    auto request = request_at(1.0, {});
    const auto patches = std::make_shared<std::vector<float>>(8);
    request.images = {{"a", 0, 1, 1, 2, patches}, {"b", 1, 2, 2, 2, patches}};
    REQUIRE(check_request(request, 1000));
    edit(request.images);
    const Status status = check_request(request, 1000);
    REQUIRE_FALSE(status);
    CHECK(status.error().reason == Reason::kInvalidField);
    CHECK_THAT(status.error().detail, Catch::Contains(why));
  };
  using Images = std::vector<RequestImage>;
  refused("images[1].id is empty", [](Images& i) { i[1].id.clear(); });
  refused("images[1] has 2 tokens from 0; expected 1 or more within [1, 3)",
          [](Images& i) { i[1].begin = 0; });
  refused("images[0] has 1 tokens from -1", [](Images& i) { i[0].begin = -1; });
  refused("images[1] has 3 tokens", [](Images& i) { i[1].tokens = 3; });
  refused("images[0] has 0 tokens", [](Images& i) { i[0].tokens = 0; });
  refused("images[1] has 8 numbers for 3 x 2 patches", [](Images& i) { i[1].grid_height = 3; });
  refused("8 numbers for 0 x 2 patches", [](Images& i) { i[1].grid_height = 0; });
  refused("patches", [](Images& i) { i[1].grid_height = int64_t{1} << 62; });
  refused("has 0 numbers", [](Images& i) { i[0].patches.reset(); });
}

TEST_CASE("servers: a load needs an absolute path and a version") {
  ServerOptions options;
  options.url = "http://127.0.0.1:1";
  LlamaCppServer client(options);
  CHECK(client.load_weights_from_disk("w", 7).error().reason == Reason::kInvalidField);
  CHECK(client.load_weights_from_disk("/w", -1).error().reason == Reason::kInvalidField);
}

TEST_CASE("servers: options that make no sense are refused") {
  const auto make = [](const std::string& url, const auto& edit) {
    ServerOptions options;
    options.url = url;
    edit(options);
    return LlamaCppServer(options);
  };
  const auto as_is = [](ServerOptions&) {};
  for (const char* url : {"http://h", "http://h:1", "http://10.0.0.1:8000/v", "http://[::1]:80/",
                          "https://h", "https://h:1/v1"}) {
    INFO(url);
    CHECK_NOTHROW(make(url, as_is));
  }
  for (const char* url : {"", "h:1", "ftp://h", "https://", "http://", "http://:1", "http://h:0",
                          "http://h:70000", "http://h:1x", "http://u@h", "http://h?a", "http://h#a",
                          "http://h /", "http://[::1", "http://h]:1"}) {
    INFO(url);
    CHECK_THROWS_AS(make(url, as_is), std::invalid_argument);
  }
  CHECK_THROWS(make("http://h", [](ServerOptions& o) { o.api_key = "a\r\nb: c"; }));
  CHECK_THROWS(make("http://h", [](ServerOptions& o) { o.vocab_size = 0; }));
  CHECK_THROWS(make("http://h", [](ServerOptions& o) { o.generate_tries = 0; }));
  CHECK_THROWS(make("http://h", [](ServerOptions& o) { o.max_response_bytes = 0; }));
  CHECK_THROWS(make("http://h", [](ServerOptions& o) { o.load_deadline = {}; }));
}

}  // namespace
}  // namespace ringside::bridge::test
