// Runs simulated runs under faults until enough faults were injected, and prints the seeds that
// fail.
//
//   simulator                        100,000 faults, from seed 1 on
//   simulator --faults 1000000       a million
//   simulator --first 5000           from seed 5000 on
//   simulator --images               with tools that return images
//   simulator --sessions             with samples that are sessions of agents
//   simulator --stragglers           with samples that hang, and steps that go on without them
//   simulator --recipes              with kept sets, greedy samples and words of records; with
//                                    --sessions too
//   simulator --seed 17 --verbose    one seed again, with a trace on standard error
//
// Exit code 1 when a seed failed. README.md says what is simulated and what is checked.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "rl/report/log.h"
#include "tests/simulator/simulation.h"

namespace {

using ringside::simulator::Outcome;

struct Flags {
  uint64_t faults = 100'000;
  uint64_t first = 1;
  uint64_t seed = 0;  // 0: many
  ringside::simulator::Scene scene;
};

Flags read_flags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto number = [&] { return std::strtoull(i + 1 < argc ? argv[++i] : "0", nullptr, 10); };
    if (word == "--faults") {
      flags.faults = number();
    } else if (word == "--first") {
      flags.first = number();
    } else if (word == "--seed") {
      flags.seed = number();
    } else if (word == "--images") {
      flags.scene.images = true;
    } else if (word == "--sessions") {
      flags.scene.sessions = true;
    } else if (word == "--stragglers") {
      flags.scene.stragglers = true;
    } else if (word == "--recipes") {
      flags.scene.recipes = true;
    } else if (word == "--verbose") {
      flags.scene.verbose = true;
    } else {
      std::fprintf(stderr,
                   "usage: simulator [--images] [--sessions] [--stragglers] [--recipes] [--faults "
                   "N] [--first SEED] "
                   "[--seed SEED] [--verbose]\n");
      std::exit(2);
    }
  }
  return flags;
}

std::string words_of(const ringside::simulator::Scene& scene) {
  return std::string(scene.images ? " --images" : "") + (scene.sessions ? " --sessions" : "") +
         (scene.stragglers ? " --stragglers" : "") + (scene.recipes ? " --recipes" : "");
}

void print_failure(uint64_t seed, uint64_t faults, const Outcome& outcome,
                   const std::string& scene) {
  std::printf(
      "seed %llu fails, after %llu faults in all: %s\n  again: simulator --seed %llu%s --verbose\n",
      static_cast<unsigned long long>(seed), static_cast<unsigned long long>(faults),
      outcome.trouble.c_str(), static_cast<unsigned long long>(seed), scene.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const Flags flags = read_flags(argc, argv);
  if (!flags.scene.verbose) {
    ringside::rl::log::set_level(ringside::rl::log::Level::kError);
  }
  ringside::simulator::FaultCounts faults;
  uint64_t seed = flags.seed != 0 ? flags.seed : flags.first;
  uint64_t runs = 0, failed = 0, events = 0;
  int64_t checks = 0;
  ringside::simulator::ImageFigures images;
  ringside::simulator::SessionFigures sessions;
  int64_t stand_ins = 0;
  ringside::simulator::RecipeFigures recipes;
  const auto begin = std::chrono::steady_clock::now();
  do {
    const Outcome outcome = ringside::simulator::simulate(seed, flags.scene);
    faults.add(outcome.faults);
    events += outcome.events;
    checks += outcome.checks;
    images.received += outcome.images.received;
    images.asked += outcome.images.asked;
    images.dropped += outcome.images.dropped;
    images.trained += outcome.images.trained;
    stand_ins += outcome.stand_ins;
    sessions.answers += outcome.sessions.answers;
    sessions.branches += outcome.sessions.branches;
    sessions.of_several_versions += outcome.sessions.of_several_versions;
    recipes.kept_tokens += outcome.recipes.kept_tokens;
    recipes.greedy += outcome.recipes.greedy;
    recipes.chosen += outcome.recipes.chosen;
    recipes.spanned += outcome.recipes.spanned;
    ++runs;
    if (!outcome.ok) {
      ++failed;
      print_failure(seed, faults.total(), outcome, words_of(flags.scene));
    }
    ++seed;
  } while (flags.seed == 0 && faults.total() < flags.faults);
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (const auto& [kind, count] : faults.by_kind()) {
    std::printf("%10llu %s\n", static_cast<unsigned long long>(count), kind.c_str());
  }
  if (flags.scene.images) {
    std::printf("%llu images received, %llu asked for again, %llu dropped, %llu trained on\n",
                static_cast<unsigned long long>(images.received),
                static_cast<unsigned long long>(images.asked),
                static_cast<unsigned long long>(images.dropped),
                static_cast<unsigned long long>(images.trained));
  }
  if (flags.scene.sessions) {
    std::printf("%lld answers of sessions, %lld branches, %lld rollouts of several versions\n",
                static_cast<long long>(sessions.answers), static_cast<long long>(sessions.branches),
                static_cast<long long>(sessions.of_several_versions));
  }
  if (flags.scene.stragglers) {
    std::printf("%lld samples that steps went on without\n", static_cast<long long>(stand_ins));
  }
  if (flags.scene.recipes) {
    std::printf(
        "%lld tokens with kept sets, %lld rewards above a greedy one, %lld rollouts of records "
        "with "
        "words, %lld of several versions\n",
        static_cast<long long>(recipes.kept_tokens), static_cast<long long>(recipes.greedy),
        static_cast<long long>(recipes.chosen), static_cast<long long>(recipes.spanned));
  }
  std::printf(
      "%llu faults in %llu runs, %llu events, %lld checks, %llu runs failed; %.1f s, %.0f faults a "
      "minute\n",
      static_cast<unsigned long long>(faults.total()), static_cast<unsigned long long>(runs),
      static_cast<unsigned long long>(events), static_cast<long long>(checks),
      static_cast<unsigned long long>(failed), took,
      60 * static_cast<double>(faults.total()) / took);
  return failed == 0 ? 0 : 1;
}
