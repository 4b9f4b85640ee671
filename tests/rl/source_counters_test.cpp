// Guards the names under which metrics.jsonl has what became of rollouts, and that refusals are
// told by reason.
#include "rl/rollouts/source_counters.h"

#include <catch2/catch.hpp>
#include <map>

using namespace ringside;

TEST_CASE("a recorded file has no figures of a bridge", "[counters]") {
  rl::Metrics metrics;
  rl::append_source_metrics(metrics, {});
  for (const auto& [name, value] : metrics) {
    CHECK(name.rfind("rollouts/", 0) == 0);
    CHECK(name != "rollouts/dropped_siblings");  // nothing counts these
    CHECK(name != "rollouts/regranted_groups");
  }
}

TEST_CASE("what the bridge counted is told by name, refusals by reason where there were any",
          "[counters]") {
  rl::SourceCounters counters;
  counters.waiting = 3;
  counters.bridge.emplace();
  counters.bridge->lost_workers = 2;
  counters.bridge->duplicate = 5;
  counters.bridge->weight_bytes = 7;
  counters.bridge->delta_staged = 8;
  counters.bridge->delta_refetched = 9;
  counters.bridge->rejected[static_cast<std::size_t>(bridge::Reason::kUnknownVersion)] = 4;
  rl::Metrics metrics;
  rl::append_source_metrics(metrics, counters);
  const std::map<std::string, double> by_name(metrics.begin(), metrics.end());
  CHECK(by_name.size() == metrics.size());
  CHECK(by_name.at("rollouts/waiting") == 3);
  CHECK(by_name.at("bridge/lost_workers") == 2);
  CHECK(by_name.at("bridge/duplicates") == 5);
  CHECK(by_name.at("bridge/rejected/unknown_version") == 4);
  CHECK(by_name.count("bridge/rejected/not_granted") == 0);
  CHECK(by_name.at("weights/bytes") == 7);
  CHECK(by_name.at("weights/delta_staged") == 8);
  CHECK(by_name.at("weights/delta_refetched") == 9);
}
