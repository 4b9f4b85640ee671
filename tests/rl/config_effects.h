// Table of every configuration key: the value that it is changed to, and what then differs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "tests/rl/config_outcomes.h"

namespace ringside::test {

using Consumer = std::function<std::string(const rl::Config&)>;

struct Effect {
  std::string key;
  std::string value;  // another than the key has under `base`
  Consumer consumer;
  Words base;  // under which the key acts
};
// Read where only a process or a server shows it: the test that does, or the one expression that
// consumes it.
struct Elsewhere {
  std::string key;
  std::string file;
  std::string text;
};

// Under which every effect is tried, before its own `base`.
Words common();
Words with(Words words, const Words& more);
// A run with a KL term, and one with a critic.
extern const Words kKl, kGae;

// Each key has one entry in these three.
std::vector<Effect> all_effects();
const std::vector<Elsewhere>& elsewhere();

}  // namespace ringside::test
