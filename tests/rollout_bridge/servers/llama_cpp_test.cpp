// The client of llama-server against exchanges written from llama.cpp's documentation;
// tools/test_llama.sh runs it against a real one.
#include "rollout_bridge/servers/llama_cpp.h"

#include "tests/rollout_bridge/servers/contract.h"

namespace ringside::bridge::test {
namespace {

using nlohmann::json;

LlamaCppServer make_llama_cpp(const ServerOptions& options) { return LlamaCppServer(options); }

std::vector<Exchange> llama_cpp_script(const std::string& generate) {
  return joined(exchanges("llama_cpp", "health"), exchanges("llama_cpp", generate));
}

TEST_CASE("llama.cpp: one completion with ids and log-probs") {
  const auto result =
      generate_against(llama_cpp_script("generate"), make_llama_cpp, request_at(1.0, {}));
  REQUIRE(result);
  CHECK(result.value().completion_ids == std::vector<int64_t>{5, 6, 9});
  CHECK(result.value().logprobs == std::vector<float>{-0.5F, -1.25F, -2.0F});
  CHECK(result.value().logprobs_complete);
  CHECK(result.value().finish_reason == FinishReason::kStop);
}

TEST_CASE("llama.cpp: merged tokens have no log-probs, and say so") {
  const auto result =
      generate_against(llama_cpp_script("merged_tokens"), make_llama_cpp, request_at(1.0, {}));
  REQUIRE(result);
  CHECK(result.value().completion_ids == std::vector<int64_t>{5, 6, 7, 9});
  CHECK_FALSE(result.value().logprobs_complete);
  CHECK(result.value().logprobs.empty());
}

TEST_CASE("llama.cpp: log-probs that do not match the ids one by one are incomplete") {
  const std::vector<Edit> edits = {
      [](json& list) { list[1]["id"] = 7; },         // as many, but of other tokens
      [](json& list) { list.erase(2); },             // one short at the end
      [](json& list) { list.push_back(list[2]); }};  // one too many
  for (const Edit& edit : edits) {
    const auto list =
        edited(llama_cpp_script("generate"), [&](json& a) { edit(a["completion_probabilities"]); });
    const auto result = generate_against(list, make_llama_cpp, request_at(1.0, {}));
    REQUIRE(result);
    CHECK(result.value().completion_ids == std::vector<int64_t>{5, 6, 9});
    CHECK_FALSE(result.value().logprobs_complete);
    CHECK(result.value().logprobs.empty());
  }
}

TEST_CASE(
    "llama.cpp: where all tokens were parts of characters the list is left out, and log-probs are "
    "incomplete") {
  const auto script_without =
      edited(llama_cpp_script("generate"), [](json& a) { a.erase("completion_probabilities"); });
  const auto result = generate_against(script_without, make_llama_cpp, request_at(1.0, {}));
  REQUIRE(result);
  CHECK_FALSE(result.value().logprobs_complete);
  CHECK(result.value().logprobs.empty());
}

TEST_CASE("llama.cpp: broken transport") {
  check_broken_transport(llama_cpp_script("generate"), make_llama_cpp, request_at(1.0, {}));
}

TEST_CASE("llama.cpp: an answer that does not hold is refused") {
  const auto refused = [](Reason reason, const std::string& why, const Edit& edit) {
    check_refused(llama_cpp_script("generate"), make_llama_cpp, request_at(1.0, {}), reason, why,
                  edit);
  };
  refused(Reason::kMalformed, "no tokens", [](json& a) { a.erase("tokens"); });
  refused(Reason::kInvalidField, "tokens[0]", [](json& a) { a["tokens"][0] = 1000; });
  refused(Reason::kInvalidField, "completion_probabilities[1]",
          [](json& a) { a["completion_probabilities"][1]["logprob"] = nullptr; });
  refused(Reason::kInvalidField, "completion_probabilities[1]",
          [](json& a) { a["completion_probabilities"][1]["logprob"] = -3.4028234663852886e38; });
  refused(Reason::kInvalidField, "truncated", [](json& a) { a["truncated"] = true; });
  refused(Reason::kInvalidField, "tokens_evaluated", [](json& a) { a["tokens_evaluated"] = 4; });
  refused(Reason::kMalformed, "stop_type", [](json& a) { a["stop_type"] = "none"; });
}

TEST_CASE("llama.cpp: takes the model's own distribution and nothing else") {
  ServerOptions options;
  options.url = "http://127.0.0.1:1";
  const LlamaCppServer client = make_llama_cpp(options);
  CHECK(client.check_sampling({}));
  for (const SamplingSettings& settings :
       {SamplingSettings{.temperature = 0.7}, SamplingSettings{.top_p = 0.9},
        SamplingSettings{.top_k = 40}, SamplingSettings{.min_p = 0.05},
        SamplingSettings{.repetition_penalty = 1.1}, SamplingSettings{.presence_penalty = 0.1},
        SamplingSettings{.frequency_penalty = 0.1}}) {
    CHECK_FALSE(client.check_sampling(settings));
  }
}

TEST_CASE("llama.cpp: what follows a stop id is cut off") {
  const auto result =
      generate_against(llama_cpp_script("generate"), make_llama_cpp, request_at(1.0, {8, 6}));
  REQUIRE(result);
  CHECK(result.value().completion_ids == std::vector<int64_t>{5, 6});
  CHECK(result.value().logprobs == std::vector<float>{-0.5F, -1.25F});
  CHECK(result.value().finish_reason == FinishReason::kStop);
  const auto merged =
      generate_against(llama_cpp_script("merged_tokens"), make_llama_cpp, request_at(1.0, {7}));
  REQUIRE(merged);
  CHECK(merged.value().completion_ids == std::vector<int64_t>{5, 6, 7});
  CHECK(merged.value().logprobs.empty());
  CHECK_FALSE(merged.value().logprobs_complete);
}

TEST_CASE("llama.cpp: what it cannot is said, and the server stays usable") {
  ExchangeServer server(exchanges("llama_cpp", "generate"));
  LlamaCppServer client = make_llama_cpp(server.options());
  const Status loaded = client.load_weights_from_disk("/w/step-7", 7);
  REQUIRE_FALSE(loaded);
  CHECK(loaded.error().reason == Reason::kUnsupported);
  CHECK_THAT(loaded.error().detail,
             Catch::Contains("checkpoint /w/step-7") && Catch::Contains("restart"));
  CHECK_FALSE(client.pause(PausePolicy::kDrain));
  CHECK_FALSE(client.resume());
  CHECK_FALSE(client.weight_version());
  CHECK(client.generate(request_at(1.0, {})));
  CHECK(server.differences() == "");
}

TEST_CASE("llama.cpp: a server that is still loading is busy") {
  ExchangeServer server(exchanges("llama_cpp", "loading"));
  const Status status = make_llama_cpp(server.options()).connect();
  REQUIRE_FALSE(status);
  CHECK(status.error().reason == Reason::kBusy);
}

}  // namespace
}  // namespace ringside::bridge::test
