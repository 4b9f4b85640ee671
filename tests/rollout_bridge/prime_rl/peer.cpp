// The trainer's side for publisher_test.py: joins the publisher at the given address, prints every
// message as it decodes, or why it does not, one JSON line each, until the given number of messages
// has come or none comes for ten seconds.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "rollout_bridge/prime_rl/codec.h"
#include "rollout_bridge/prime_rl/stream.h"

namespace ringside::bridge::prime_rl {
namespace {

nlohmann::json describe(const Rollout& r) {
  return {{"id", r.rollout_id},
          {"group", r.group_id},
          {"group_size", r.group_size},
          {"sample", r.sample_index},
          {"prompt_id", r.prompt_id},
          {"prompt", r.prompt_ids},
          {"mask", r.loss_mask},
          {"completion", r.completion_ids},
          {"logprobs", r.logprobs},
          {"advantages", r.advantages},
          {"temperature", r.temperature},
          {"version", r.versions.at(0).version},
          {"covered", r.versions.at(0).end},
          {"rewards", r.rewards},
          {"top_p", r.top_p}};
}

int serve(const std::string& address, int64_t messages) {
  StepStream stream({.address = address, .max_message_bytes = 1 << 20});
  for (int64_t i = 0; i < messages; ++i) {
    const auto message = stream.receive(std::chrono::seconds(10));
    nlohmann::json line;
    if (!message) {
      line["error"] = "silence";
      i = messages;
    } else {
      const std::span<const std::byte> bytes(static_cast<const std::byte*>(message->data()),
                                             message->size());
      const auto step = decode_step(bytes, {i + 1, 100 * i, 0, 5});
      if (step) {
        line = {{"rollouts", nlohmann::json::array()},
                {"without_loss", step.value().without_loss},
                {"padding", step.value().padding_tokens}};
        for (const Rollout& rollout : step.value().rollouts) {
          line["rollouts"].push_back(describe(rollout));
        }
      } else {
        line["error"] = step.error().detail;
      }
    }
    const StreamCounters& counters = stream.counters();
    line["counters"] = {counters.joined, counters.lost, counters.messages, counters.refused};
    std::cout << line << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace ringside::bridge::prime_rl

int main(int argc, char** argv) {
  return argc == 3 ? ringside::bridge::prime_rl::serve(argv[1], std::stoll(argv[2])) : 2;
}
