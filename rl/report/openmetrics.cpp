#include "rl/report/openmetrics.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include "rl/report/http_thread.h"

namespace ringside::rl {
namespace {

constexpr const char* kContentType = "application/openmetrics-text; version=1.0.0; charset=utf-8";

std::string metric_name(const std::string& name) {
  std::string text = "ringside_";
  for (const char c : name) {
    const bool kept = std::isalnum(static_cast<unsigned char>(c)) != 0;
    text += kept ? c : '_';
  }
  return text;
}

std::string value_text(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "+Inf" : "-Inf";
  }
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

// 0 when the text is no port.
int port_of(const std::string& text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool read = error == std::errc() && end == text.data() + text.size();
  return read && port >= 1 && port <= 65535 ? port : 0;
}

}  // namespace

std::string openmetrics_text(int64_t step, const Metrics& metrics) {
  std::string text;
  std::set<std::string> seen;
  const auto add = [&](const std::string& name, double value) {
    if (seen.insert(name).second) {
      text += "# TYPE " + name + " gauge\n" + name + " " + value_text(value) + "\n";
    }
  };
  add("ringside_step", static_cast<double>(step));
  for (const auto& [name, value] : metrics) {
    add(metric_name(name), value);
  }
  return text + "# EOF\n";
}

class OpenMetricsServer::Server {
 public:
  explicit Server(const std::string& address) {
    const std::size_t colon = address.rfind(':');
    std::string host = address.substr(0, colon);
    if (host.size() > 2 && host.front() == '[') {
      host = host.substr(1, host.size() - 2);
    }
    httplib::Server& http = thread_.http();
    http.new_task_queue = [] { return new httplib::ThreadPool(1); };
    http.set_read_timeout(5);
    http.set_payload_max_length(1 << 16);
    http.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      const std::lock_guard lock(mutex_);
      response.set_content(text_, kContentType);
    });
    const int port = port_of(colon == std::string::npos ? "" : address.substr(colon + 1));
    if (port == 0 || thread_.bind(host, port) == 0) {
      throw std::runtime_error("log.openmetrics " + address +
                               ": cannot be bound; expected HOST:PORT with an address of this "
                               "machine and a free port");
    }
    thread_.start();
  }

  void set(std::string text) {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }

 private:
  std::mutex mutex_;  // guards text_
  std::string text_ = openmetrics_text(0, {});
  HttpThread thread_;  // last, because its handler uses the others
};

OpenMetricsServer::OpenMetricsServer(const std::string& address)
    : server_(std::make_unique<Server>(address)) {}

OpenMetricsServer::~OpenMetricsServer() = default;

void OpenMetricsServer::set(int64_t step, const Metrics& metrics) {
  server_->set(openmetrics_text(step, metrics));
}

}  // namespace ringside::rl
