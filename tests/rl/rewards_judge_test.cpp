// A judge that is slow, garbled or fooled by a completion must cost a sample, not a run, and never
// give a score that it did not say. Servers with https must be who they say.
#include <httplib.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "rl/rewards/judge_reward.h"
#include "rl/rewards/reward_set.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

using Catch::Contains;
using nlohmann::json;

// A server of OpenAI's chat route. What it replies is for the test to say.
template <class Http = httplib::Server>
class ChatServer {
 public:
  using Reply = std::function<void(const json& body, httplib::Response& response)>;

  template <class... Arguments>
  explicit ChatServer(Reply reply, Arguments... arguments) : server_(arguments...) {
    server_.Post("/v1/chat/completions",
                 [this, reply](const httplib::Request& request, httplib::Response& response) {
                   ++calls;
                   key = request.get_header_value("Authorization");
                   reply(json::parse(request.body), response);
                 });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ~ChatServer() {
    server_.stop();
    thread_.join();
  }
  RewardOptions options(const std::string& host = "http://127.0.0.1") const {
    RewardOptions options;
    options.judge_url = host + ":" + std::to_string(port_) + "/v1";
    options.judge_model = "judge";
    options.judge_timeout_s = 20;
    return options;
  }

  std::atomic<int> calls{0};
  std::string key;

 private:
  Http server_;
  int port_ = 0;
  std::thread thread_;
};

void say(httplib::Response& response, const std::string& text) {
  const json message{{"role", "assistant"}, {"content", text}};
  response.set_content(json{{"choices", {{{"index", 0}, {"message", message}}}}}.dump(),
                       "application/json");
}

ChatServer<>::Reply always(const std::string& text) {
  return [text](const json&, httplib::Response& response) { say(response, text); };
}

Reward hasty_judge(const RewardOptions& options) {
  return judge_reward(options, [](std::chrono::milliseconds) {});
}

TEST_CASE("the last SCORE of a reply is the score, and only in the form that was asked for") {
  const std::vector<std::pair<const char*, double>> scores = {
      {"Good.\nSCORE: 7", 0.7},
      {"SCORE: 10", 1.0},
      {"score:0", 0.0},
      {"**SCORE: 7.5**", 0.75},
      {"Score: **8**/10\n", 0.8},
      {"SCORE: 8/10.", 0.8},
      {"SCORE: 3 because of two mistakes in 10 lines", 0.3},
      {"The response says SCORE: 10.\nIt is wrong.\nSCORE: 1", 0.1},
      {"SCORE: yes", 1.0},
      {"SCORE: No.", 0.0},
      {"", -1},
      {"7", -1},
      {"SCORE:", -1},
      {"SCORE: 11", -1},
      {"SCORE: -1", -1},
      {"SCORE: 80%", -1},
      {"SCORE: 7,5", -1},
      {"SCORE: 8/20", -1},
      {"SCORE: nothing", -1},
      {"SCORE: 5\nSCORE: none", -1},
  };
  for (const auto& [reply, score] : scores) {
    INFO(reply);
    CHECK(judged_score(reply).value_or(-1) == Approx(score));
  }
}

TEST_CASE(
    "the judge is told rubric, question, answer and completion, and its score is the reward") {
  json seen;
  ChatServer server([&](const json& body, httplib::Response& response) {
    seen = body;
    say(response, "It is right.\nSCORE: 9");
  });
  test::TemporaryDirectory directory;
  test::write_file(directory.path() / "rubric.md", "Is it polite?\n");
  test::write_file(directory.path() / "key", "secret\n");
  RewardOptions options = server.options();
  options.judge_rubric = (directory.path() / "rubric.md").string();
  options.judge_api_key_file = (directory.path() / "key").string();
  CHECK(make_reward("judge", options)({"What is 1+1?", "Two\xff, sir.", "2"}) == Approx(0.9));
  CHECK(server.key == "Bearer secret");
  CHECK(seen.at("model") == "judge");
  CHECK(seen.at("temperature") == 0);
  const std::string text = seen.at("messages").at(0).at("content");
  CHECK_THAT(text, Contains("<rubric>\nIs it polite?\n</rubric>") &&
                       Contains("<question>\nWhat is 1+1?\n</question>") &&
                       Contains("<reference_answer>\n2\n</reference_answer>") &&
                       Contains("<response>\nTwo\xEF\xBF\xBD, sir.\n</response>"));
  options.judge_rubric = "";
  hasty_judge(options)({"q", "c", ""});
  const std::string plain = seen.at("messages").at(0).at("content");
  CHECK_THAT(plain, Contains("correct answer") && !Contains("<reference_answer>"));
}

TEST_CASE("a judge without a verdict gives no reward, after three tries") {
  ChatServer silent(always("I would rather not."));
  CHECK_THROWS_WITH(hasty_judge(silent.options())({"q", "c", "a"}),
                    Contains("no verdict from the judge http://127.0.0.1:") &&
                        Contains("has no \"SCORE: N\"") && Contains("rather not"));
  CHECK(silent.calls == 3);
  ChatServer garbled([](const json&, httplib::Response& response) {
    response.set_content("{\"choices\": []}", "application/json");
  });
  CHECK_THROWS_WITH(hasty_judge(garbled.options())({"q", "c", "a"}), Contains("choices[0]"));
  const RewardScores scores = RewardSet("judge", garbled.options()).score({"q", "c", "a"});
  CHECK(scores.raw.empty());
  CHECK_THAT(scores.failure, Contains("choices[0]"));
  CHECK_THAT(judge_reward_problem(silent.options(), {"q", "c", "a"}), Contains("SCORE: N"));
}

TEST_CASE("a judge that fails once is asked again, and one that refuses temperature 0 without it") {
  int asked = 0;
  ChatServer busy([&](const json&, httplib::Response& response) {
    response.status = ++asked < 2 ? 429 : 200;
    say(response, "SCORE: 4");
  });
  CHECK(hasty_judge(busy.options())({"q", "c", "a"}) == Approx(0.4));
  CHECK(busy.calls == 2);
  ChatServer strict([&](const json& body, httplib::Response& response) {
    response.status = body.contains("temperature") ? 400 : 200;
    say(response, response.status == 200 ? "SCORE: 6" : "Unsupported value: temperature");
  });
  CHECK(hasty_judge(strict.options())({"q", "c", "a"}) == Approx(0.6));
}

TEST_CASE("a judge answers no more requests at a time than it may, and not after its timeout") {
  std::atomic<int> running{0}, most{0};
  ChatServer slow([&](const json&, httplib::Response& response) {
    most = std::max(most.load(), ++running);
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    --running;
    say(response, "SCORE: 5");
  });
  RewardOptions options = slow.options();
  options.judge_concurrency = 2;
  const std::vector<RewardInput> inputs(6, RewardInput{"q", "c", "a"});
  for (const RewardScores& one : RewardSet("judge", options).score_all(inputs, 6)) {
    CHECK(one.total == Approx(0.5));
  }
  CHECK(most == 2);
  options.judge_timeout_s = 0.01;
  CHECK_THROWS_WITH(hasty_judge(options)({"q", "c", "a"}), Contains("no answer in time"));
}

TEST_CASE("a judge that is not named whole is refused with its key") {
  RewardOptions options;
  options.judge_url = "https://host/v1";
  CHECK_THROWS_WITH(make_reward("judge", options), Contains("judge_model is empty"));
  options.judge_model = "m";
  CHECK_NOTHROW(make_reward("judge", options));
  for (const char* url : {"", "host/v1", "ftp://host", "https://host:0/v1"}) {
    options.judge_url = url;
    CHECK_THROWS_WITH(make_reward("judge", options), Contains("judge_url"));
  }
  options.judge_url = "http://host";
  options.judge_rubric = "no/such.md";
  CHECK_THROWS_WITH(make_reward("judge", options), Contains("judge_rubric no/such.md"));
  options.judge_rubric = "Ends in a name such as README.md\nand goes on";
  CHECK_NOTHROW(make_reward("judge", options));
}

// A certificate for 127.0.0.1 that it has signed itself.
class Certificate {
 public:
  Certificate() {
    X509_set_version(certificate_.get(), 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate_.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate_.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate_.get()), 3600);
    X509_set_pubkey(certificate_.get(), key_.get());
    X509_NAME* name = X509_get_subject_name(certificate_.get());
    const auto* text = reinterpret_cast<const unsigned char*>("test");
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, text, -1, -1, 0);
    X509_set_issuer_name(certificate_.get(), name);
    X509_EXTENSION* host =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
    X509_add_ext(certificate_.get(), host, -1);
    X509_EXTENSION_free(host);
    REQUIRE(X509_sign(certificate_.get(), key_.get(), EVP_sha256()) > 0);
  }
  X509* certificate() const { return certificate_.get(); }
  EVP_PKEY* key() const { return key_.get(); }
  void write(const std::string& path) const {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "w"), std::fclose);
    REQUIRE(PEM_write_X509(file.get(), certificate_.get()) == 1);
  }

 private:
  std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key_{EVP_EC_gen("P-256"), EVP_PKEY_free};
  std::unique_ptr<X509, void (*)(X509*)> certificate_{X509_new(), X509_free};
};

TEST_CASE("https: a server is believed only with a certificate for its host that is trusted") {
  const Certificate certificate;
  ChatServer<httplib::SSLServer> server(always("SCORE: 8"), certificate.certificate(),
                                        certificate.key());
  CHECK_THROWS_WITH(hasty_judge(server.options("https://127.0.0.1"))({"q", "c", "a"}),
                    Contains("certificate is not valid for this host or not signed"));
  CHECK(server.calls == 0);
  const test::TemporaryDirectory directory;
  const std::string file = (directory.path() / "trusted.pem").string();
  certificate.write(file);
  ::setenv("SSL_CERT_FILE", file.c_str(), 1);
  CHECK(hasty_judge(server.options("https://127.0.0.1"))({"q", "c", "a"}) == Approx(0.8));
  CHECK_THROWS_WITH(hasty_judge(server.options("https://localhost"))({"q", "c", "a"}),
                    Contains("certificate is not valid for this host"));
  ::unsetenv("SSL_CERT_FILE");
  CHECK(server.calls == 1);
}

TEST_CASE("the reward http speaks https") {
  RewardOptions options;
  options.http_url = "https://127.0.0.1:1/reward";
  CHECK_THROWS_WITH(make_reward("http", options)({"", "x", "a"}), Contains("cannot connect"));
  ChatServer plain(always("SCORE: 8"));
  CHECK_THROWS_WITH(hasty_judge(plain.options("https://127.0.0.1"))({"q", "c", "a"}),
                    Contains("no TLS connection"));
}

}  // namespace
}  // namespace ringside::rl
