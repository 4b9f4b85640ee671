// The client of SGLang against exchanges written from SGLang's documentation. Never run against
// SGLang.
#include "rollout_bridge/servers/sglang.h"

#include "tests/rollout_bridge/servers/contract.h"

namespace ringside::bridge::test {
namespace {

using nlohmann::json;

SglangServer make_sglang(const ServerOptions& options) { return SglangServer(options); }

std::vector<Exchange> sglang_script(const std::string& generate) {
  return joined(exchanges("sglang", "connect"), exchanges("sglang", generate));
}

TEST_CASE("sglang: one completion with ids, log-probs and the label") {
  const auto result =
      generate_against(sglang_script("generate"), make_sglang, request_at(0.7, {9}));
  REQUIRE(result);
  CHECK(result.value().completion_ids == std::vector<int64_t>{5, 6, 9});
  CHECK(result.value().logprobs == std::vector<float>{-0.5F, -1.25F, -2.0F});
  CHECK(result.value().finish_reason == FinishReason::kStop);
  CHECK(result.value().versions.empty());
  CHECK(result.value().label == "7");
}

TEST_CASE("sglang: aborted before the first token") {
  const auto result =
      generate_against(sglang_script("abort_before_prefill"), make_sglang, request_at(0.7, {9}));
  REQUIRE(result);
  CHECK(result.value().finish_reason == FinishReason::kAborted);
  CHECK(result.value().completion_ids.empty());
}

TEST_CASE("sglang: broken transport") {
  check_broken_transport(sglang_script("generate"), make_sglang, request_at(0.7, {9}));
}

TEST_CASE("sglang: an answer that does not hold is refused") {
  const auto refused = [](Reason reason, const std::string& why, const Edit& edit) {
    check_refused(sglang_script("generate"), make_sglang, request_at(0.7, {9}), reason, why,
                  [&edit](json& answer) { edit(answer["meta_info"]); });
  };
  refused(Reason::kMalformed, "no output_token_logprobs",
          [](json& m) { m.erase("output_token_logprobs"); });
  refused(Reason::kMalformed, "2 log-probs for",
          [](json& m) { m["output_token_logprobs"].erase(2); });
  refused(Reason::kInvalidField, "logprobs[1]",
          [](json& m) { m["output_token_logprobs"][1][0] = nullptr; });
  refused(Reason::kInvalidField, "logprobs[1]",
          [](json& m) { m["output_token_logprobs"][1][0] = -3.4e38; });
  refused(Reason::kInvalidField, "logprobs[0]",
          [](json& m) { m["output_token_logprobs"][0][1] = 1000; });
  refused(Reason::kMalformed, "logprobs[0]",
          [](json& m) { m["output_token_logprobs"][0] = json::array({-0.5}); });
  refused(Reason::kMalformed, "output_ids", [](json& m) { m["output_token_logprobs"][0][1] = 4; });
  refused(Reason::kMalformed, "finish_reason", [](json& m) { m["finish_reason"] = "stop"; });
}

TEST_CASE("sglang: log-probs of given tokens") {
  const auto score = [](const std::vector<Exchange>& script) {
    ExchangeServer server(script);
    SglangServer client = make_sglang(server.options());
    auto result = client.score({1, 2, 3});
    CHECK(server.differences() == "");
    return result;
  };
  const auto good = exchanges("sglang", "score");
  const auto scores = score(good);
  REQUIRE(scores);
  CHECK(scores.value() == std::vector<float>{-0.75F, -1.5F});
  const auto refused = [&](Reason reason, const Edit& edit) {
    const auto result = score(
        edited(good, [&](json& answer) { edit(answer["meta_info"]["input_token_logprobs"]); }));
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == reason);
  };
  refused(Reason::kMalformed, [](json& list) { list.erase(0); });
  refused(Reason::kMalformed, [](json& list) { list[2][1] = 4; });
  refused(Reason::kInvalidField, [](json& list) { list[2][0] = nullptr; });
  refused(Reason::kInvalidField, [](json& list) { list[1][0] = 0.5; });
}

TEST_CASE("sglang: the probe tells whether log-probs follow the temperature") {
  for (const bool follows : {true, false}) {
    ExchangeServer server(exchanges("sglang", follows ? "connect" : "connect_original_logprob"));
    SglangServer client = make_sglang(server.options());
    CHECK_FALSE(client.check_sampling({}));
    REQUIRE(client.connect());
    CHECK(server.differences() == "");
    CHECK(client.check_sampling({}));
    CHECK(client.check_sampling({.temperature = 0.7}).ok() == follows);
    CHECK_FALSE(client.check_sampling({.top_p = 0.9}));
    CHECK_FALSE(client.check_sampling({.top_k = 20}));
    CHECK_FALSE(client.check_sampling({.presence_penalty = 0.1}));
  }
}

TEST_CASE("sglang: pause, resume and what it cannot") {
  ExchangeServer server(exchanges("sglang", "pause"));
  SglangServer client = make_sglang(server.options());
  const Status drained = client.pause(PausePolicy::kDrain);
  REQUIRE_FALSE(drained);
  CHECK(drained.error().reason == Reason::kUnsupported);
  CHECK(client.pause(PausePolicy::kAbort));
  CHECK(client.pause(PausePolicy::kKeep));
  CHECK(client.resume());
  CHECK(server.differences() == "");
}

TEST_CASE("sglang: weights from disk, and their label") {
  ExchangeServer server(joined(exchanges("sglang", "load"), exchanges("sglang", "weight_version")));
  SglangServer client = make_sglang(server.options());
  CHECK(client.load_weights_from_disk("/w/step-7", 7));
  const auto label = client.weight_version();
  REQUIRE(label);
  CHECK(label.value() == "7");
  CHECK(server.differences() == "");
}

TEST_CASE("sglang: a refused load stays in doubt") {
  ExchangeServer server(
      joined(exchanges("sglang", "connect"), exchanges("sglang", "load_refused")));
  SglangServer client = make_sglang(server.options());
  REQUIRE(client.connect());
  const Status loaded = client.load_weights_from_disk("/w/step-7", 7);
  REQUIRE_FALSE(loaded);
  CHECK_THAT(loaded.error().detail, Catch::Contains("no such directory"));
  CHECK_FALSE(client.generate(request_at(0.7, {9})));
  CHECK(server.differences() == "");
}

}  // namespace
}  // namespace ringside::bridge::test
