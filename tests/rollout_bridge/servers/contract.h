// What every client must make of an answer that is not as it should be. Each case replays a good
// exchange with the answer changed.
#pragma once

#include <catch2/catch.hpp>
#include <functional>

#include "tests/rollout_bridge/servers/exchange_server.h"

namespace ringside::bridge::test {

// The request behind all "generate" exchanges.
inline GenerateRequest request_at(double temperature, std::vector<int64_t> stop_ids) {
  GenerateRequest request;
  request.prompt_ids = {1, 2, 3};
  request.max_tokens = 4;
  request.sampling.temperature = temperature;
  request.stop_ids = std::move(stop_ids);
  request.seed = 7;
  request.request_id = "u-1";
  request.cache_salt = "7";
  return request;
}

inline std::vector<Exchange> joined(std::vector<Exchange> first,
                                    const std::vector<Exchange>& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

using Edit = std::function<void(nlohmann::json&)>;

// `list` with the last answer changed.
inline std::vector<Exchange> edited(std::vector<Exchange> list, const Edit& edit) {
  nlohmann::json answer = nlohmann::json::parse(list.back().answer);
  edit(answer);
  list.back().answer = answer.dump();
  return list;
}

inline std::vector<Exchange> answering(std::vector<Exchange> list, int status,
                                       const std::string& answer) {
  list.back().status = status;
  list.back().answer = answer;
  return list;
}

// Connects a client of type S made by `make`, generates, and gives the result. The script has to be
// gone through exactly.
template <class Make>
Result<GenerateResult> generate_against(const std::vector<Exchange>& script, const Make& make,
                                        const GenerateRequest& request) {
  ExchangeServer server(script);
  auto client = make(server.options());
  const Status connected = client.connect();
  INFO((connected ? "" : connected.error().detail));
  REQUIRE(connected);
  Result<GenerateResult> result = client.generate(request);
  CHECK(server.differences() == "");
  return result;
}

// `script` ends with a good generate. Troubles that do not depend on the answer's fields.
template <class Make>
void check_broken_transport(const std::vector<Exchange>& script, const Make& make,
                            const GenerateRequest& request) {
  const std::string good = script.back().answer;
  SECTION("truncated JSON is malformed, and not asked for again") {
    const auto result =
        generate_against(answering(script, 200, good.substr(0, good.size() / 2)), make, request);
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::kMalformed);
    CHECK_THAT(result.error().detail, Catch::Contains("status 200") &&
                                          Catch::Contains("http://127.0.0.1") &&
                                          Catch::Contains(good.substr(0, 100)));
  }
  SECTION("NaN is no JSON") {
    std::string text = good;
    text.replace(text.find("-1.25"), 5, "NaN");
    const auto result = generate_against(answering(script, 200, text), make, request);
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::kMalformed);
  }
  SECTION("status 400 is an error at once, with the first 200 bytes") {
    const std::string body = std::string(200, 'x') + "secret";
    const auto result = generate_against(answering(script, 400, body), make, request);
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::kInvalidField);
    CHECK_THAT(result.error().detail, Catch::Contains("status 400: " + std::string(150, 'x')));
    CHECK_THAT(result.error().detail, !Catch::Contains("secret"));
  }
  SECTION("another shape of JSON is malformed") {
    for (const char* text : {"[]", "1", "null", "{}", R"({"choices": {}, "meta_info": []})"}) {
      INFO(text);
      const auto result = generate_against(answering(script, 200, text), make, request);
      REQUIRE_FALSE(result);
      CHECK(result.error().reason == Reason::kMalformed);
    }
  }
}

// Every edit of the good answer has to end in this kind of error.
template <class Make>
void check_refused(const std::vector<Exchange>& script, const Make& make,
                   const GenerateRequest& request, Reason reason, const std::string& why,
                   const Edit& edit) {
  INFO(why);
  const auto result = generate_against(edited(script, edit), make, request);
  REQUIRE_FALSE(result);
  INFO(result.error().detail);
  CHECK(result.error().reason == reason);
  CHECK_THAT(result.error().detail, Catch::Contains(why));
}

}  // namespace ringside::bridge::test
