#include "rl/trainer/rank_agreement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "rl/config/schema.h"
#include "rl/trainer/checkpoint.h"
#include "rl/trainer/source_fingerprints.h"
#include "rollout_bridge/base/content_hash.h"

namespace ringside::rl {
namespace {

constexpr std::size_t kSentences = 10;  // the rest is counted

// Keys (and sections, with a trailing dot) that may differ.
constexpr std::array<std::string_view, 5> kMayDiffer = {"train.threads", "bridge.", "log.level",
                                                        "log.progress", "log.openmetrics"};

bool may_differ(const Field& field) {
  return std::holds_alternative<PathSlot>(field.slot) ||
         std::any_of(kMayDiffer.begin(), kMayDiffer.end(), [&](std::string_view free) {
           return free.ends_with('.') ? field.key.starts_with(free) : field.key == free;
         });
}

std::string encode(const RankFacts& facts) {
  nlohmann::json list = nlohmann::json::array();
  for (const RankFact& fact : facts) {
    list.push_back({fact.name, fact.value, fact.group});
  }
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankFacts decode(const std::string& text) {
  RankFacts facts;
  for (const auto& fact : nlohmann::json::parse(text)) {
    facts.push_back({fact.at(0), fact.at(1), fact.at(2)});
  }
  return facts;
}

std::string shown(const std::string& value) { return value.empty() ? "nothing" : value; }

// The sentence about one fact; "" if the ranks agree. values: by rank; "" where the rank has none.
std::string difference(const std::string& name, const std::map<int64_t, std::string>& values) {
  const auto& [first_rank, first] = *values.begin();
  std::string sentence;
  int64_t more = 0;
  for (const auto& [rank, value] : values) {
    if (value == first) {
      continue;
    }
    if (sentence.empty()) {
      sentence = name + ": rank " + std::to_string(first_rank) + " has " + shown(first) +
                 ", rank " + std::to_string(rank) + " has " + shown(value);
    } else {
      ++more;
    }
  }
  return more == 0 ? sentence
                   : sentence + "; " + std::to_string(more) + " more ranks differ from rank " +
                         std::to_string(first_rank);
}

// Throws RanksDiffer unless `sentences` is empty.
void refuse(const std::vector<std::string>& sentences) {
  if (sentences.empty()) {
    return;
  }
  std::string text = "the ranks differ, and nothing was trained:";
  for (std::size_t i = 0; i < std::min(sentences.size(), kSentences); ++i) {
    text += "\n  " + sentences[i];
  }
  if (sentences.size() > kSentences) {
    text += "\n  and " + std::to_string(sentences.size() - kSentences) + " more";
  }
  throw RanksDiffer(text +
                    "\nexpected the same recipe, overrides, files and program for every rank");
}

std::vector<RankFacts> decode_all(const std::vector<std::string>& texts) {
  std::vector<RankFacts> facts;
  std::transform(texts.begin(), texts.end(), std::back_inserter(facts), decode);
  return facts;
}

}  // namespace

RankFacts configuration_facts(Config config) {
  RankFacts facts;
  for (const Field& field : fields_of(config)) {
    if (!may_differ(field)) {
      facts.push_back({field.key, value_text(field.slot)});
    }
  }
  return facts;
}

RankFacts source_facts(const Config& config) {
  RankFacts facts;
  for (const auto& [key, hash] : source_fingerprints(config)) {
    if (key != "data.train") {  // rank 0 alone reads it
      facts.push_back({"the files of " + key, hash});
    }
  }
  return facts;
}

RankFact weights_fact(const std::string& name, const engine::ModelRunner& model) {
  bridge::Hash128 held;
  bridge::Hash128 values;
  for (const engine::NamedSlice& slice : model.state_slices()) {
    // A packed matrix (lora.base) has no values here.
    if (slice.name.starts_with("exp_avg") || slice.values.is_meta()) {
      continue;
    }
    const sp::Range columns = slice.columns.value_or(sp::Range{});
    const std::string part = slice.name + "\n" + std::to_string(columns.begin) + "\n" +
                             std::to_string(columns.end) + "\n" + std::to_string(slice.begin) +
                             "\n" + std::to_string(slice.values.numel()) + "\n";
    held.update(std::as_bytes(std::span(part)));
    const at::Tensor host = slice.values.to(at::kCPU).contiguous();
    values.update(std::span(static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()));
  }
  return {"the loaded weights of the " + name, values.hex(), held.hex()};
}

std::vector<std::string> differences_of_ranks(const std::vector<RankFacts>& of_ranks) {
  using Key = std::pair<std::string, std::string>;  // name and group
  std::vector<Key> order;
  std::map<Key, std::map<int64_t, std::string>> values;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (const RankFact& fact : of_ranks[rank]) {
      const Key key{fact.name, fact.group};
      if (!values.contains(key)) {
        order.push_back(key);
      }
      values[key][static_cast<int64_t>(rank)] = fact.value;
    }
  }
  std::vector<std::string> sentences;
  for (const Key& key : order) {
    auto& of_fact = values.at(key);
    for (std::size_t rank = 0; key.second.empty() && rank < of_ranks.size(); ++rank) {
      of_fact.try_emplace(static_cast<int64_t>(rank));
    }
    if (std::string sentence = difference(key.first, of_fact); !sentence.empty()) {
      sentences.push_back(std::move(sentence));
    }
  }
  return sentences;
}

std::vector<std::string> gather_texts(const std::string& mine, sp::Communicator& world) {
  at::Tensor longest = at::full({1}, static_cast<int64_t>(mine.size()), at::kLong);
  world.all_reduce_max(longest, "rank agreement");
  const auto width = longest.item<int64_t>() + 1;  // at least one zero ends each text
  at::Tensor padded = at::zeros({width}, at::kByte);
  std::memcpy(padded.mutable_data_ptr<uint8_t>(), mine.data(), mine.size());
  const at::Tensor all = world.all_gather(padded, "rank agreement").contiguous();
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()) + rank * width);
  }
  return texts;
}

void check_ranks_agree(const RankFacts& mine, sp::Communicator& world) {
  if (world.size() > 1) {
    refuse(differences_of_ranks(decode_all(gather_texts(encode(mine), world))));
  }
}

void check_ranks_agree(const RankFacts& mine, const sp::GroupRendezvous& rendezvous,
                       const std::string& name, int64_t rank, int64_t size) {
  c10d::Store& store = *rendezvous.store;
  const auto key = [&](int64_t of_rank) { return "facts/" + name + "/" + std::to_string(of_rank); };
  const std::string text = encode(mine);
  store.set(key(rank), std::vector<uint8_t>(text.begin(), text.end()));
  sp::await_ranks(rendezvous, name, rank, size);
  const std::string verdict_key = "verdict/" + name;
  if (rank == 0) {  // one rank reads them all
    std::vector<std::string> texts;
    for (int64_t peer = 0; peer < size; ++peer) {
      const auto bytes = store.get(key(peer));
      texts.emplace_back(bytes.begin(), bytes.end());
    }
    const std::string verdict = nlohmann::json(differences_of_ranks(decode_all(texts))).dump();
    store.set(verdict_key, std::vector<uint8_t>(verdict.begin(), verdict.end()));
  }
  store.wait({verdict_key}, rendezvous.timeout);
  const auto bytes = store.get(verdict_key);
  const auto sentences =
      nlohmann::json::parse(bytes.begin(), bytes.end()).get<std::vector<std::string>>();
  try {
    // Rank 0 serves the store, so it must not leave before the others have the verdict.
    sp::await_ranks(rendezvous, name + " compared", rank, size);
  } catch (const std::exception&) {
    refuse(sentences);
    throw;
  }
  refuse(sentences);
}

void check_loaded(const RunRanks& ranks, const std::filesystem::path& run_dir,
                  const engine::ModelRunner& policy, const std::function<RankFacts()>& more) {
  if (ranks.world().size() == 1) {
    return;
  }
  RankFacts facts;
  ranks.on_every([&] {
    const auto newest = latest_checkpoint(run_dir);
    facts.push_back(
        {"the checkpoint to resume from", newest ? newest->filename().string() + ", manifest " +
                                                       fingerprint_of({*newest / kManifestFile})
                                                 : "none"});
    facts.push_back(weights_fact("policy", policy));
    if (more) {
      const RankFacts others = more();
      facts.insert(facts.end(), others.begin(), others.end());
    }
  });
  check_ranks_agree(facts, ranks.world());
}

}  // namespace ringside::rl
