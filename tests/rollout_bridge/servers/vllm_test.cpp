// The client of vLLM against exchanges written from vLLM's documentation. Never run against vLLM.
#include "rollout_bridge/servers/vllm.h"

#include <unistd.h>

#include <numeric>
#include <tuple>

#include "tests/rollout_bridge/servers/contract.h"

namespace ringside::bridge::test {
namespace {

using nlohmann::json;

VllmServer make_vllm(const ServerOptions& options) { return {options, "M"}; }

std::vector<Exchange> vllm_script(const std::string& generate,
                                  const std::string& connect = "connect_processed") {
  return joined(exchanges("vllm", connect), exchanges("vllm", generate));
}

json& choice(json& answer) { return answer["choices"][0]; }

TEST_CASE("vllm: one completion with ids, log-probs and spans of weights") {
  const auto result = generate_against(vllm_script("generate"), make_vllm, request_at(0.7, {9}));
  REQUIRE(result);
  CHECK(result.value().completion_ids == std::vector<int64_t>{5, 6, 9});
  CHECK(result.value().logprobs == std::vector<float>{-0.5F, -1.25F, -2.0F});
  CHECK(result.value().logprobs_complete);
  CHECK(result.value().finish_reason == FinishReason::kStop);
  CHECK(result.value().versions == std::vector<LabelSpan>{{"6", 0, 1}, {"7", 1, 3}});
}

TEST_CASE("vllm: aborted before the first token") {
  for (const char* name : {"abort_before_prefill", "abort_without_fields"}) {
    const auto result = generate_against(vllm_script(name), make_vllm, request_at(0.7, {9}));
    REQUIRE(result);
    CHECK(result.value().finish_reason == FinishReason::kAborted);
    CHECK(result.value().completion_ids.empty());
    CHECK(result.value().logprobs.empty());
  }
}

TEST_CASE("vllm: broken transport") {
  check_broken_transport(vllm_script("generate"), make_vllm, request_at(0.7, {9}));
}

TEST_CASE("vllm: an answer that does not hold is refused") {
  const auto refused = [](Reason reason, const std::string& why, const Edit& edit) {
    check_refused(vllm_script("generate"), make_vllm, request_at(0.7, {9}), reason, why, edit);
  };
  refused(Reason::kMalformed, "no token_ids", [](json& a) { choice(a).erase("token_ids"); });
  refused(Reason::kMalformed, "0 log-probs for 3", [](json& a) { choice(a).erase("logprobs"); });
  refused(Reason::kMalformed, "2 log-probs for 3",
          [](json& a) { choice(a)["logprobs"]["token_logprobs"].erase(2); });
  refused(Reason::kInvalidField, "token_logprobs[1]",
          [](json& a) { choice(a)["logprobs"]["token_logprobs"][1] = nullptr; });
  refused(Reason::kInvalidField, "token_logprobs[1]",
          [](json& a) { choice(a)["logprobs"]["token_logprobs"][1] = 0.5; });
  refused(Reason::kInvalidField, "-9999",
          [](json& a) { choice(a)["logprobs"]["token_logprobs"][1] = -9999.0; });
  for (const json& id : {json(1000), json(-1), json(~0ULL)}) {
    refused(Reason::kInvalidField, "token_ids[0]",
            [&](json& a) { choice(a)["token_ids"][0] = id; });
  }
  refused(Reason::kMalformed, "token_ids[0]", [](json& a) { choice(a)["token_ids"][0] = 5.0; });
  refused(Reason::kMalformed, "logprobs.tokens", [](json& a) { choice(a)["token_ids"][0] = 4; });
  refused(Reason::kInvalidField, "prompt_token_ids", [](json& a) {
    choice(a)["prompt_token_ids"] = {0, 1, 2, 3};
  });
  refused(Reason::kMalformed, "finish_reason",
          [](json& a) { choice(a)["finish_reason"] = nullptr; });
  refused(Reason::kInvalidField, "span of weights",
          [](json& a) { choice(a)["weight_versions"][1]["start"] = 2; });
  refused(Reason::kInvalidField, "end at 2 of 3",
          [](json& a) { choice(a)["weight_versions"][1]["end"] = 2; });
  refused(Reason::kMalformed, "not one choice", [](json& a) { a["choices"].push_back(choice(a)); });
}

TEST_CASE("vllm: more tokens than asked for are refused") {
  auto request = request_at(0.7, {9});
  request.max_tokens = 2;
  auto list = vllm_script("generate");
  list.back().body["max_tokens"] = 2;
  const auto result = generate_against(list, make_vllm, request);
  REQUIRE_FALSE(result);
  CHECK_THAT(result.error().detail, Catch::Contains("3 token ids; at most 2"));
}

TEST_CASE("vllm: the probe tells what log-probs are of") {
  const auto check = [](const char* connect, const SamplingSettings& settings) {
    ExchangeServer server(exchanges("vllm", connect));
    VllmServer client = make_vllm(server.options());
    CHECK_FALSE(client.check_sampling({}));  // before connect nothing is known
    CHECK(client.connect());
    CHECK(server.differences() == "");
    return client.check_sampling(settings);
  };
  CHECK(check("connect_processed", {.temperature = 0.7, .top_p = 0.9, .top_k = 20}));
  CHECK(check("connect_raw", {}));
  CHECK_FALSE(check("connect_raw", {.temperature = 0.7}));
  CHECK_FALSE(check("connect_raw", {.top_p = 0.9}));
  CHECK_FALSE(check("connect_raw", {.top_k = 20}));
  CHECK_FALSE(check("connect_processed", {.min_p = 0.1}));
  CHECK_FALSE(check("connect_processed", {.repetition_penalty = 1.1}));
  const auto raw = check("connect_raw", {.temperature = 0.7});
  CHECK_THAT(raw.error().detail, Catch::Contains("processed_logprobs"));

  // Logits, and log-probs that follow the temperature but not top_k, are neither.
  for (const char* connect : {"connect_logits", "connect_scaled"}) {
    ExchangeServer server(exchanges("vllm", connect));
    VllmServer client = make_vllm(server.options());
    const Status connected = client.connect();
    REQUIRE_FALSE(connected);
    CHECK_THAT(connected.error().detail, Catch::Contains("neither"));
    CHECK_FALSE(client.check_sampling({}));
  }
}

TEST_CASE("vllm: pause and resume") {
  ExchangeServer server(exchanges("vllm", "pause"));
  VllmServer client = make_vllm(server.options());
  CHECK(client.pause(PausePolicy::kDrain));
  CHECK(client.pause(PausePolicy::kAbort));
  CHECK(client.pause(PausePolicy::kKeep));
  CHECK(client.resume());
  CHECK(server.differences() == "");
}

TEST_CASE("vllm: weights from disk, both ways") {
  for (const bool reload : {true, false}) {
    ExchangeServer server(
        joined(exchanges("vllm", "connect_processed"),
               exchanges("vllm", reload ? "load_by_reload" : "load_by_disk_backend")));
    ServerOptions options = server.options();
    options.load_deadline = std::chrono::seconds(300);
    VllmServer client(options, "M", reload ? VllmWeights::kReload : VllmWeights::kDiskBackend);
    REQUIRE(client.connect());
    CHECK(client.capabilities().version_label);
    const Status loaded = client.load_weights_from_disk("/w/step-7", 7);
    INFO((loaded ? "" : loaded.error().detail));
    CHECK(loaded);
    CHECK(server.differences() == "");
  }
}

// One that pulls, whose server has `ranks` ranks with the worker extension.
std::vector<Exchange> connect_with_ranks(std::size_t ranks) {
  auto list = exchanges("vllm", "connect_without_label");
  for (Exchange& exchange : list) {
    if (exchange.target != "/collective_rpc") {
      continue;
    }
    exchange.status = 200;
    exchange.answer = json{{"results", json(ranks, json{{"version", -1}})}}.dump();
  }
  return list;
}

const WeightSource kSource{"tcp://127.0.0.1:5555", {1, 2, 3}, "run", 4, 7, "abc"};

Result<std::string> pull_against(const std::vector<Exchange>& script, VllmWeights weights) {
  ExchangeServer server(script);
  ServerOptions options = server.options();
  options.load_deadline = std::chrono::seconds(300);
  VllmServer client(options, "M", weights);
  REQUIRE(client.connect());
  CHECK(client.capabilities().pull);
  Result<std::string> root = client.pull_weights(kSource);
  CHECK(server.differences() == "");
  return root;
}

TEST_CASE("vllm: weights pulled by the worker extension, on all ranks or on none") {
  const auto one =
      pull_against(joined(connect_with_ranks(1), exchanges("vllm", "pull")), VllmWeights::kReload);
  REQUIRE(one);
  CHECK(one.value() == "abc");
  const auto both = joined(connect_with_ranks(2), exchanges("vllm", "pull_two_ranks"));
  const auto two = pull_against(both, VllmWeights::kReload);
  REQUIRE(two);
  CHECK(two.value() == "abc");
  // One rank staged other bytes: nothing is installed.
  auto staged = both;
  staged.erase(staged.end() - 2, staged.end());
  const auto torn = pull_against(
      edited(staged, [](json& a) { a["results"][1]["root_hash"] = "abd"; }), VllmWeights::kReload);
  REQUIRE_FALSE(torn);
  CHECK(torn.error().reason == Reason::kChecksum);
}

TEST_CASE("vllm: weights pulled by its own routes") {
  const auto connect = exchanges("vllm", "connect_without_label");
  const auto update = exchanges("vllm", "pull_by_engine");
  const auto root = pull_against(joined(connect, update), VllmWeights::kEngine);
  REQUIRE(root);
  CHECK(root.value() == "abc");
  SECTION("a refused update is an error and is not finished") {
    const auto refused = pull_against(
        joined(connect, answering({update[0], update[1], update[2]}, 500, "wrong root")),
        VllmWeights::kEngine);
    REQUIRE_FALSE(refused);
    CHECK_THAT(refused.error().detail, Catch::Contains("wrong root"));
  }
  SECTION("an update that was never finished is ended first") {
    const auto open = joined(answering({update[0], update[1]}, 500, "already active"),
                             {update[3], update[1], update[2], update[3], update[4]});
    CHECK(pull_against(joined(connect, open), VllmWeights::kEngine));
  }
}

TEST_CASE("vllm: without a label route weights are loaded and not labelled") {
  auto load = exchanges("vllm", "load_by_reload");
  load.erase(load.begin() + 3);
  load.erase(load.begin() + 1);
  load[0].body["timeout"] = 600;
  ExchangeServer server(joined(exchanges("vllm", "connect_without_label"), load));
  VllmServer client = make_vllm(server.options());
  REQUIRE(client.connect());
  CHECK_FALSE(client.capabilities().version_label);
  CHECK(client.load_weights_from_disk("/w/step-7", 7));
  CHECK(server.differences() == "");
}

TEST_CASE("vllm: a failed load is not tried again, and nothing is sampled until one succeeds") {
  const auto load = exchanges("vllm", "load_by_disk_backend");
  const std::vector<Exchange> failed = answering({load[0], load[1]}, 500, "half applied");
  auto all = joined(joined(joined(exchanges("vllm", "connect_processed"), failed), load),
                    exchanges("vllm", "generate"));
  ExchangeServer server(all);
  VllmServer client(server.options(), "M", VllmWeights::kDiskBackend);
  REQUIRE(client.connect());
  const Status first = client.load_weights_from_disk("/w/step-7", 7);
  REQUIRE_FALSE(first);
  CHECK(first.error().reason == Reason::kClosed);
  const auto refused = client.generate(request_at(0.7, {9}));
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().detail, Catch::Contains("version 7"));
  CHECK(client.load_weights_from_disk("/w/step-7", 7));
  CHECK(client.generate(request_at(0.7, {9})));
  CHECK(server.differences() == "");
}

TEST_CASE("vllm: a label that is not the one that was set is an error") {
  auto load = exchanges("vllm", "load_by_reload");
  load[0].body["timeout"] = 600;
  ExchangeServer server(joined(exchanges("vllm", "connect_processed"),
                               edited(load, [](json& a) { a["weight_version"] = "6"; })));
  VllmServer client = make_vllm(server.options());
  REQUIRE(client.connect());
  CHECK_FALSE(client.load_weights_from_disk("/w/step-7", 7));
}

// Loads adapter number `count` of this process as version `version`; then the label's exchanges.
std::vector<Exchange> adapter_load(int count, int64_t version, bool unload) {
  const auto name = [&](int number, int64_t of) {
    return "ringside-v" + std::to_string(of) + "-" + std::to_string(::getpid()) + "-" +
           std::to_string(number);
  };
  std::vector<Exchange> list{{"POST",
                              "/v1/load_lora_adapter",
                              {{"lora_name", name(count, version)}, {"lora_path", "/w/adapter"}},
                              200,
                              "Success"}};
  if (unload) {
    list.push_back({"POST",
                    "/v1/unload_lora_adapter",
                    {{"lora_name", name(count - 1, version - 1)}},
                    200,
                    "Success"});
  }
  list.push_back(exchanges("vllm", "load_by_reload")[2]);  // flushes the prefix cache
  return list;
}

TEST_CASE(
    "vllm: each version's adapter gets a new name, which requests select; the old is unloaded") {
  auto generate = exchanges("vllm", "generate");
  generate[0].body["model"] = "ringside-v7-" + std::to_string(::getpid()) + "-2";
  ExchangeServer server(
      joined(joined(exchanges("vllm", "connect_without_label"), adapter_load(1, 6, false)),
             joined(adapter_load(2, 7, true),
                    joined(exchanges("vllm", "connect_without_label"), generate))));
  const auto adapter = std::make_shared<SelectedAdapter>();
  VllmServer client(server.options(), "M", VllmWeights::kReload, adapter);
  REQUIRE(client.connect());
  CHECK(client.capabilities().adapters);
  CHECK(client.load_adapter("/w/adapter", 6, ""));
  CHECK(client.load_adapter("/w/adapter", 7, ""));
  // Another client of the server samples with what this one has loaded.
  VllmServer other(server.options(), "M", VllmWeights::kReload, adapter);
  REQUIRE(other.connect());
  CHECK(other.generate(request_at(0.7, {9})));
  CHECK(server.differences() == "");
}

TEST_CASE("vllm: of several adapters a request selects its own, and one not loaded is refused") {
  const auto name = [](const std::string& adapter, int number) {
    return "ringside-" + adapter + "-v6-" + std::to_string(::getpid()) + "-" +
           std::to_string(number);
  };
  const auto load = [&](const std::string& adapter, int number) -> std::vector<Exchange> {
    return {{"POST",
             "/v1/load_lora_adapter",
             {{"lora_name", name(adapter, number)}, {"lora_path", "/w/" + adapter}},
             200,
             "Success"},
            exchanges("vllm", "load_by_reload")[2]};
  };
  auto of_math = exchanges("vllm", "generate"), of_code = of_math;
  of_math[0].body["model"] = name("math", 1);
  of_code[0].body["model"] = name("code", 2);
  ExchangeServer server(joined(
      joined(exchanges("vllm", "connect_without_label"), joined(load("math", 1), load("code", 2))),
      joined(of_code, of_math)));
  VllmServer client = make_vllm(server.options());
  REQUIRE(client.connect());
  CHECK(client.load_adapter("/w/math", 6, "math"));
  CHECK(client.load_adapter("/w/code", 6, "code"));
  GenerateRequest request = request_at(0.7, {9});
  for (const char* adapter : {"code", "math"}) {
    request.adapter = adapter;
    CHECK(client.generate(request));
  }
  request.adapter = "law";
  const auto refused = client.generate(request);
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().detail, Catch::Contains("the adapter law is not loaded"));
  CHECK_FALSE(client.score_under("law", {1, 2}));
  CHECK(server.differences() == "");
}

TEST_CASE("vllm: a server without run-time adapters is named, and nothing is sampled then") {
  const std::vector<Exchange> missing{
      {"POST",
       "/v1/load_lora_adapter",
       {{"lora_name", "ringside-v6-" + std::to_string(::getpid()) + "-1"},
        {"lora_path", "/w/adapter"}},
       404,
       "Not Found"}};
  ExchangeServer server(joined(exchanges("vllm", "connect_without_label"), missing));
  VllmServer client = make_vllm(server.options());
  REQUIRE(client.connect());
  const Status loaded = client.load_adapter("/w/adapter", 6, "");
  REQUIRE_FALSE(loaded);
  CHECK(loaded.error().reason == Reason::kUnsupported);
  CHECK_THAT(loaded.error().detail, Catch::Contains("VLLM_ALLOW_RUNTIME_LORA_UPDATING"));
  CHECK_FALSE(client.generate(request_at(0.7, {9})));
  CHECK(client.load_adapter("w/adapter", 6, "").error().reason == Reason::kInvalidField);
}

VllmServer make_vllm_for_images(ServerOptions options) {
  options.images = true;
  return {std::move(options), "M"};
}

std::vector<Exchange> image_script() {
  return joined(joined(exchanges("vllm", "connect_processed"), exchanges("vllm", "probe_images")),
                exchanges("vllm", "generate_images"));
}

// The request behind "generate_images": an image of 2 x 2 patches, one token.
GenerateRequest request_with_image() {
  auto request = request_at(0.7, {9});
  request.prompt_ids = {1, 60, 3};
  auto patches = std::make_shared<std::vector<float>>(24);
  std::iota(patches->begin(), patches->end(), 0.0F);
  request.images = {{"ab12", 1, 1, 2, 2, patches}};
  return request;
}

TEST_CASE(
    "vllm: a prompt with images is sent as token ids, and its patch rows as vLLM packs them") {
  const auto result = generate_against(image_script(), make_vllm_for_images, request_with_image());
  INFO((result ? "" : result.error().detail));
  REQUIRE(result);
  CHECK(result.value().completion_ids == std::vector<int64_t>{5, 6, 9});
  CHECK(result.value().logprobs == std::vector<float>{-0.5F, -1.25F, -2.0F});
  CHECK(result.value().finish_reason == FinishReason::kStop);
}

TEST_CASE("vllm: a server asked for text alone is not probed for images, and refuses them") {
  ExchangeServer server(exchanges("vllm", "connect_processed"));
  VllmServer client = make_vllm(server.options());
  REQUIRE(client.connect());
  CHECK_FALSE(client.capabilities().images);
  const auto refused = client.generate(request_with_image());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().reason == Reason::kUnsupported);
  CHECK_THAT(refused.error().detail, Catch::Contains("does not take images"));
  CHECK(server.differences() == "");
}

TEST_CASE("vllm: a server without the route for images is refused at connect") {
  const auto probe = exchanges("vllm", "probe_images");
  const auto connect = exchanges("vllm", "connect_processed");
  for (const auto& [status, reason, why] :
       {std::tuple{404, Reason::kUnsupported, "this route of vLLM 0.24"},
        std::tuple{200, Reason::kMalformed, "not one choice"}}) {
    ExchangeServer server(joined(connect, answering(probe, status, "{}")));
    VllmServer client = make_vllm_for_images(server.options());
    const Status connected = client.connect();
    REQUIRE_FALSE(connected);
    CHECK(connected.error().reason == reason);
    CHECK_THAT(connected.error().detail, Catch::Contains(why));
    CHECK_FALSE(client.capabilities().images);
    CHECK(server.differences() == "");
  }
}

TEST_CASE("vllm: an answer to a prompt with images that does not hold is refused") {
  const auto refused = [](Reason reason, const std::string& why, const Edit& edit) {
    check_refused(image_script(), make_vllm_for_images, request_with_image(), reason, why, edit);
  };
  const auto content = [](json& a) -> json& { return choice(a)["logprobs"]["content"]; };
  refused(Reason::kMalformed, "no token_ids", [](json& a) { choice(a).erase("token_ids"); });
  refused(Reason::kMalformed, "logprobs.content", [](json& a) { choice(a).erase("logprobs"); });
  refused(Reason::kMalformed, "each of 3", [&](json& a) { content(a).erase(2); });
  refused(Reason::kMalformed, "not those of token_ids",
          [&](json& a) { content(a)[1]["token"] = "token_id:5"; });
  refused(Reason::kInvalidField, "content[1].logprob",
          [&](json& a) { content(a)[1].erase("logprob"); });
  refused(Reason::kInvalidField, "-9999", [&](json& a) { content(a)[1]["logprob"] = -9999.0; });
  refused(Reason::kInvalidField, "token_ids[0]", [](json& a) { choice(a)["token_ids"][0] = 1000; });
  refused(Reason::kMalformed, "finish_reason",
          [](json& a) { choice(a)["finish_reason"] = nullptr; });
  refused(Reason::kMalformed, "not one choice", [](json& a) { a["choices"] = json::array(); });
}

TEST_CASE("vllm: an aborted sample of a prompt with images has no token") {
  const auto result = generate_against(edited(image_script(),
                                              [](json& a) {
                                                choice(a)["finish_reason"] = "abort";
                                                choice(a)["token_ids"] = json::array();
                                                choice(a)["logprobs"] = nullptr;
                                              }),
                                       make_vllm_for_images, request_with_image());
  REQUIRE(result);
  CHECK(result.value().finish_reason == FinishReason::kAborted);
  CHECK(result.value().completion_ids.empty());
}

}  // namespace
}  // namespace ringside::bridge::test
