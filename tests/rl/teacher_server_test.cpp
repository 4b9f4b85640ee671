// A teacher's server that is busy, slow, wrong or of another vocabulary must cost a sentence that
// says so, and never give a number that it did not send.
#include "rl/step/teacher_server.h"

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rl/config/load.h"
#include "rl/config/record_choices.h"
#include "rl/config/teacher.h"
#include "rl/data/record_members.h"
#include "rl/data/rollout_file.h"
#include "rl/data/text_data.h"
#include "tests/rl/teacher_service.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;

namespace {

using Catch::Contains;
using nlohmann::json;
using test::TeacherService;

constexpr int64_t kPolicyWords = 50;

rl::DistillationConfig served(int64_t top_k = 0) {
  rl::DistillationConfig config;
  config.over = top_k > 0 ? rl::DistillationOver::kTopK : rl::DistillationOver::kSampledToken;
  config.top_k = top_k;
  config.server_timeout_s = 5;
  return config;
}

std::vector<rl::ServedScores> ask(const TeacherService& service,
                                  const rl::DistillationConfig& config,
                                  const std::vector<rl::ServedDocument>& documents) {
  return rl::TeacherServer(config, service.url(), kPolicyWords, [](std::chrono::milliseconds) {})
      .score(documents);
}

json said(const std::vector<std::pair<std::string, double>>& logprobs) {
  json token;
  for (const auto& [id, value] : logprobs) {
    token[id] = {{"logprob", value}, {"rank", 1}, {"decoded_token", "x"}};
  }
  return token;
}

TeacherService::Reply always(const std::vector<json>& tokens) {
  return [tokens](const json&, httplib::Response& response) {
    response.set_content(TeacherService::answer(tokens).dump(), "application/json");
  };
}

const rl::ServedDocument kDocument{{7, 8, 9}, {1, 2}};

}  // namespace

TEST_CASE("a server gets ids, model and key, and its log-probs come to their places") {
  const test::TemporaryDirectory dir;
  test::write_file(dir.path() / "key", "secret\n");
  json body;
  TeacherService service([&](const json& request, httplib::Response& response) {
    body = request;
    always({said({{"8", -1.5}}), said({{"9", -2.5}})})(request, response);
  });
  rl::DistillationConfig config = served();
  config.server_model = "judge";
  config.server_api_key_file = (dir.path() / "key").string();
  const auto scores = ask(service, config, {kDocument});
  REQUIRE(scores.size() == 1);
  CHECK(scores[0].logprobs == std::vector<float>{-1.5F, -2.5F});
  CHECK(scores[0].top_ids.empty());
  CHECK(body["prompt"] == json{7, 8, 9});
  CHECK(body["model"] == "judge");
  CHECK(body["prompt_logprobs"] == 0);
  CHECK(service.key() == "Bearer secret");
  config.server_api_key_file = (dir.path() / "none").string();
  CHECK_THROWS_WITH(ask(service, config, {kDocument}), Contains("server_api_key_file"));
  CHECK_THROWS_WITH(rl::TeacherServer(served(), "http://", 1), Contains("distillation.teacher"));
}

TEST_CASE("the most likely tokens are sorted, and the sampled one does not count among them") {
  TeacherService service(
      always({said({{"8", -9.0}, {"3", -0.5}, {"4", -0.25}}), said({{"9", -0.25}, {"2", -1.0}})}));
  const auto scores = ask(service, served(2), {kDocument});
  CHECK(scores[0].logprobs == std::vector<float>{-9.0F, -0.25F});
  CHECK(scores[0].top_ids == std::vector<int64_t>{4, 3, 9, 2});
  CHECK(scores[0].top_logprobs == std::vector<float>{-0.25F, -0.5F, -0.25F, -1.0F});
}

TEST_CASE("a server that is busy or gone for a while is asked again, and a refusal is final") {
  std::atomic<int> failures{3};
  int status = 503;
  TeacherService service([&](const json& body, httplib::Response& response) {
    if (failures-- > 0) {
      response.status = status;
      response.set_content("too much to do", "text/plain");
    } else {
      always({said({{"8", -1.0}}), said({{"9", -2.0}})})(body, response);
    }
  });
  CHECK(ask(service, served(), {kDocument})[0].logprobs[1] == -2.0F);
  CHECK(service.calls == 4);
  failures = 1;
  status = 400;
  CHECK_THROWS_WITH(ask(service, served(), {kDocument}),
                    Contains("after 1 try") && Contains("too much to do"));
}

TEST_CASE("a server that does not answer in time is an error that names the key") {
  TeacherService service([](const json&, httplib::Response& response) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    response.set_content("{}", "application/json");
  });
  rl::DistillationConfig config = served();
  config.server_timeout_s = 0.05;
  CHECK_THROWS_WITH(ask(service, config, {kDocument}),
                    Contains("server_timeout_s") && Contains("3 tokens"));
  const rl::TeacherServer nobody(config, "http://127.0.0.1:1", kPolicyWords);
  CHECK_THROWS_WITH(nobody.score({kDocument}), Contains("127.0.0.1:1"));
  CHECK(nobody.problem(std::chrono::seconds(1)) != "");
  CHECK(rl::TeacherServer(config, service.url() + "/v1/", kPolicyWords)
            .problem(std::chrono::seconds(1)) == "");
}

TEST_CASE("answers that do not fit the document or the policy's words are refused by name") {
  const json first = said({{"8", -1.0}, {"1", -3.0}}), second = said({{"9", -1.0}, {"2", -2.0}});
  const auto error = [&](const std::vector<json>& tokens, int64_t top_k) -> std::string {
    TeacherService service(always(tokens));
    try {
      ask(service, served(top_k), {kDocument});
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(error({first, second}, 2) == "");
  CHECK_THAT(error({first}, 0), Contains("log-probs of 2 tokens, expected 3"));
  CHECK_THAT(error({first, first}, 0), Contains("no log-prob of token 9"));
  CHECK_THAT(error({first, second}, 3), Contains("2 log-probs of a token, expected 3"));
  CHECK_THAT(error({first, said({{"9", -1.0}, {"50", -0.5}})}, 2),
             Contains("the likely token 50, but the policy has 50 words"));
  CHECK_THAT(error({first, json()}, 0), Contains("has no log-probs"));
  CHECK_THAT(error({first, said({{"9x", -1.0}})}, 0), Contains("\"9x\" is no token id"));
  CHECK_THAT(error({first, said({{"9", 2.0}})}, 0), Contains("prompt_logprobs"));
  TeacherService other([](const json&, httplib::Response& response) {
    response.set_content(R"({"choices": [{"text": "no"}]})", "application/json");
  });
  CHECK_THROWS_WITH(ask(other, served(), {kDocument}), Contains("no prompt_logprobs"));
}

TEST_CASE("documents come back in order, and no more than server_concurrency run at a time") {
  TeacherService service([](const json& body, httplib::Response& response) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const int64_t id = body["prompt"][1];
    always({said({{std::to_string(id), -static_cast<double>(id)}})})(body, response);
  });
  rl::DistillationConfig config = served();
  config.server_concurrency = 3;
  std::vector<rl::ServedDocument> documents;
  for (int64_t id = 0; id < 20; ++id) {
    documents.push_back({{1, id}, {1}});
  }
  const auto scores = ask(service, config, documents);
  for (int64_t id = 0; id < 20; ++id) {
    CHECK(scores[id].logprobs[0] == -static_cast<float>(id));
  }
  CHECK(service.most_running <= 3);
  CHECK(service.most_running >= 2);
  CHECK(service.calls == 20);
}

namespace {

rl::Config with_teachers(const std::string& teachers, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"algorithm.distillation.teachers=" + teachers};
  words.insert(words.end(), more.begin(), more.end());
  return rl::load_config_or_throw({}, words);
}

}  // namespace

TEST_CASE("a list of teachers is read in its order, with absolute paths, and refused by name") {
  const auto all =
      rl::teachers_of(with_teachers("math=/m/a, code = http://h:1").algorithm.distillation);
  REQUIRE(all.size() == 2);
  CHECK((all[0].source == "math" && all[0].place == "/m/a" && !all[0].is_server()));
  CHECK((all[1].source == "code" && all[1].place == "http://h:1" && all[1].is_server()));
  CHECK(rl::absolute_teachers("a=x,b=https://y/v1", "/here") == "a=/here/x, b=https://y/v1");
  CHECK_THROWS_WITH(with_teachers("math"), Contains("teachers") && Contains("SOURCE=PLACE"));
  CHECK_THROWS_WITH(with_teachers("a=/x,"), Contains("SOURCE=PLACE"));
  CHECK_THROWS_WITH(with_teachers("a=/x, a=/y"), Contains("names the source a twice"));
}

TEST_CASE("the source of a record is found, and a record without a known one is no prompt") {
  const test::TemporaryDirectory dir;
  const auto scan = [&](const std::string& lines) {
    test::write_file(dir.path() / "train.jsonl", lines);
    return rl::scan_prompts(
        (dir.path() / "train.jsonl").string(),
        with_teachers("math=/a, code=/b", {"data.train=" + (dir.path() / "train.jsonl").string(),
                                           "data.source_key=info.kind"}));
  };
  const std::string math = R"({"prompt": "p", "info": {"kind": "math"}})"
                           "\n";
  const std::string code = R"({"prompt": "p", "info": {"kind": "code"}})"
                           "\n";
  const auto found = scan(code + math);
  REQUIRE(found.problems.empty());
  CHECK(found.items[0].kind == 1);
  CHECK(found.items[1].kind == 0);
  const auto problem = [&](const std::string& line) { return scan(math + line).problems.at(0); };
  CHECK_THAT(
      problem(R"({"prompt": "p", "info": {"kind": "law"}})"),
      Contains("train.jsonl:2") && Contains("is \"law\"") && Contains("expected math or code"));
  CHECK_THAT(problem(R"({"prompt": "p"})"),
             Contains("train.jsonl:2") && Contains("data.source_key") && Contains("teachers"));
}

TEST_CASE("recorded rollouts have the source of each group's first line") {
  const test::TemporaryDirectory dir;
  const auto path = dir.path() / "rollouts.jsonl";
  const rl::Config config = with_teachers("a=/x, b=/y", {"rollout.group_size=2"});
  test::write_file(path, "{\"data_source\": \"b\"}\n{}\n{\"data_source\": \"a\"}\n{}\n");
  CHECK(rl::recorded_kinds(path, config) == std::vector<int64_t>{1, 0});
  test::write_file(path, "{\"data_source\": \"b\"}\n{}\n{}\n{}\n");
  CHECK_THROWS_WITH(rl::recorded_kinds(path, config), Contains("rollouts.jsonl:3"));
}
