#include "rl/gateway/gateway_server.h"

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "rl/gateway/anthropic_api.h"
#include "rl/gateway/openai_api.h"
#include "rl/gateway/request_fields.h"
#include "rl/report/http_thread.h"

namespace ringside::rl {
namespace {

using nlohmann::ordered_json;

constexpr const char* kJson = "application/json";
constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // of a request
constexpr int64_t kMostWait = 60;                          // seconds

// How a route reads a request, and writes its answers and errors.
struct Dialect {
  ModelRequest (*read)(const ordered_json&);
  ordered_json (*write)(const ModelRequest&, const ModelReplies&);
  std::unique_ptr<EventWriter> (*events)(const ModelRequest&);
  ordered_json (*error)(int, const std::string&);
};

constexpr Dialect kChat{read_openai_chat, openai_chat_answer, openai_chat_events, openai_error};
constexpr Dialect kText{read_openai_completion, openai_completion_answer, openai_completion_events,
                        openai_error};
constexpr Dialect kMessages{read_anthropic_messages, anthropic_answer, anthropic_events,
                            anthropic_error};

ordered_json body_of(const httplib::Request& request) {
  ordered_json body = ordered_json::parse(request.body, nullptr, /*allow_exceptions=*/false);
  if (body.is_discarded()) {
    throw RequestRefused(400, "the body is no JSON");
  }
  return body;
}

// The session's name: in the path, or as the API key.
std::string session_name(const httplib::Request& request) {
  if (request.matches.size() > 1 && request.matches[1].matched) {
    return request.matches[1].str();
  }
  constexpr std::string_view kBearer = "Bearer ";
  const std::string bearer = request.get_header_value("Authorization");
  if (bearer.starts_with(kBearer)) {
    return bearer.substr(kBearer.size());
  }
  return request.get_header_value("x-api-key");
}

// Runs a handler; what it throws becomes an answer.
template <class Handler>
void answer(httplib::Response& response, const Dialect& dialect, const Handler& handler) {
  const auto refuse = [&](int status, const char* why) {
    response.status = status;
    response.set_content(
        dialect.error(status, why).dump(-1, ' ', false, ordered_json::error_handler_t::replace),
        kJson);
  };
  try {
    handler();
  } catch (const RequestRefused& refused) {
    refuse(refused.status(), refused.what());
  } catch (const std::exception& error) {
    refuse(500, error.what());
  }
}

}  // namespace

class GatewayServer::Server {
 public:
  Server(const std::string& address, int threads, std::string model, Gateway& gateway)
      : model_(std::move(model)), gateway_(gateway) {
    httplib::Server& http = thread_.http();
    http.new_task_queue = [threads] { return new httplib::ThreadPool(threads); };
    http.set_payload_max_length(kMostBytes);
    http.set_read_timeout(30);
    http.set_write_timeout(30);  // of a client that reads no stream; its samples are recorded
    // One request a connection, because an idle one keeps a thread. The timeout is that of a
    // connection's first byte, too: a busy client may take long to send it.
    http.set_keep_alive_max_count(1);
    http.set_keep_alive_timeout(30);
    http.set_tcp_nodelay(true);
    add_routes();
    bind(address);
    thread_.start();
  }

  const std::string& url() const { return url_; }

 private:
  void bind(const std::string& address) {
    url_ = thread_.bind(address);
    if (url_.empty()) {
      throw std::runtime_error("rollout.harness_options.address " + address +
                               " cannot be bound; expected HOST:PORT with an address of this "
                               "machine and a free port, or port 0");
    }
  }

  void add_routes() {
    add_dialect("/v1/chat/completions", kChat);
    add_dialect("/v1/completions", kText);
    add_dialect("/v1/messages", kMessages);
    thread_.http().Get("(?:/sessions/([^/]+))?/v1/models",
                       [this](const httplib::Request&, httplib::Response& response) {
                         response.set_content(models().dump(), kJson);
                       });
    thread_.http().Post("/sessions",
                        [this](const httplib::Request& request, httplib::Response& response) {
                          answer(response, kChat, [&] { claim(request, response); });
                        });
    thread_.http().Post("/sessions/([^/]+)/reward", [this](const httplib::Request& request,
                                                           httplib::Response& response) {
      answer(response, kChat, [&] {
        Gateway::end(*gateway_.desk().find(session_name(request)), body_of(request));
        response.set_content("{}", kJson);
      });
    });
  }

  void add_dialect(const std::string& route, const Dialect& dialect) {
    thread_.http().Post(
        "(?:/sessions/([^/]+))?" + route,
        [this, &dialect](const httplib::Request& request, httplib::Response& response) {
          answer(response, dialect, [&] { reply(request, dialect, response); });
        });
  }

  void reply(const httplib::Request& request, const Dialect& dialect, httplib::Response& response) {
    const std::shared_ptr<Session> session = gateway_.desk().find(session_name(request));
    const ModelRequest asked = dialect.read(body_of(request));
    if (!asked.stream) {
      response.set_content(dialect.write(asked, gateway_.answer(session, asked)).dump(), kJson);
      return;
    }
    const std::shared_ptr<ReplyStream> stream =
        gateway_.stream(session, asked, dialect.events(asked));
    response.set_chunked_content_provider("text/event-stream",
                                          [stream](std::size_t, httplib::DataSink& sink) {
                                            const std::string events = stream->next();
                                            if (events.empty()) {
                                              sink.done();
                                              return true;
                                            }
                                            return sink.write(events.data(), events.size());
                                          });
  }

  void claim(const httplib::Request& request, httplib::Response& response) {
    const ordered_json body = request.body.empty() ? ordered_json::object() : body_of(request);
    const int64_t wait_s = RequestFields(body).integer("wait_s", 0, 0, kMostWait);
    const auto session = gateway_.desk().claim(std::chrono::seconds(wait_s));
    if (session == nullptr) {
      response.status = 204;
      return;
    }
    ordered_json claimed = Gateway::claimed(*session);
    claimed["base_url"] = url_ + "/sessions/" + session->id() + "/v1";
    claimed["model"] = model_;
    response.set_content(claimed.dump(), kJson);
  }

  ordered_json models() const {
    return {{"object", "list"},
            {"data",
             {{{"id", model_}, {"object", "model"}, {"created", 0}, {"owned_by", "ringside"}}}}};
  }

  std::string model_;
  Gateway& gateway_;
  std::string url_;
  HttpThread thread_;  // last, because its handlers use the others
};

GatewayServer::GatewayServer(const std::string& address, int threads, std::string model,
                             Gateway& gateway)
    : server_(std::make_unique<Server>(address, threads, std::move(model), gateway)) {}

GatewayServer::~GatewayServer() = default;

const std::string& GatewayServer::url() const { return server_->url(); }

}  // namespace ringside::rl
