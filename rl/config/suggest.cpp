#include "rl/config/suggest.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "rl/config/other_systems.h"
#include "rl/config/renamed.h"
#include "rl/config/schema.h"
#include "rl/rewards/edit_distance.h"

namespace ringside::rl {
namespace {

std::string_view last_component(std::string_view key) {
  const auto dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

std::ptrdiff_t depth_of(std::string_view key) { return std::count(key.begin(), key.end(), '.'); }

bool ends_at_dot(std::string_view key, std::string_view suffix) {
  if (!key.ends_with(suffix)) {
    return false;
  }
  return key.size() == suffix.size() || key[key.size() - suffix.size() - 1] == '.';
}

bool is_separator(char c) { return c == '.' || c == '_'; }

// Whether `word` stands in the key between separators or ends.
bool has_word(std::string_view key, std::string_view word) {
  for (std::size_t at = key.find(word); at != std::string_view::npos; at = key.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || is_separator(key[at - 1])) && (end == key.size() || is_separator(key[end]))) {
      return true;
    }
  }
  return false;
}

const Absent* find_absent(std::string_view unknown) {
  for (const Absent& feature : absent_features()) {
    if (has_word(unknown, feature.word)) {
      return &feature;
    }
  }
  return nullptr;
}

// The longest name that the key ends with.
const Translation* find_translation(std::string_view unknown) {
  const Translation* best = nullptr;
  for (const Translation& entry : translations()) {
    const bool longer = best == nullptr || entry.theirs.size() > best->theirs.size();
    if (longer && ends_at_dot(unknown, entry.theirs)) {
      best = &entry;
    }
  }
  return best;
}

}  // namespace

std::string absent_feature(std::string_view unknown) {
  const Absent* found = find_absent(unknown);
  return found == nullptr ? "" : std::string(found->sentence);
}

std::string nearest_key(std::string_view unknown) {
  const std::string_view leaf = last_component(unknown);
  std::string best;
  std::size_t best_distance = std::string::npos;
  for (const std::string& key : known_keys()) {
    const std::size_t whole = edit_distance(unknown, key);
    // A leaf in the wrong section counts one more than the same typo in the right section.
    const std::size_t part = edit_distance(leaf, last_component(key)) + 1;
    const std::size_t distance = std::min(whole, part);
    const std::size_t limit = std::max<std::size_t>(2, leaf.size() / 3);
    // Of equally near keys, the one with fewer levels.
    const bool shallower = distance == best_distance && depth_of(key) < depth_of(best);
    if (distance <= limit && (distance < best_distance || shallower)) {
      best = key;
      best_distance = distance;
    }
  }
  return best;
}

std::string translate(std::string_view unknown) {
  const Translation* found = find_translation(unknown);
  return found == nullptr ? "" : std::string(found->ours);
}

std::string suggestion(std::string_view unknown) {
  for (const RenamedKey& key : renamed_keys()) {
    if (key.before == unknown) {
      return "unknown key; it is now " + std::string(key.now);
    }
  }
  const Translation* translation = find_translation(unknown);
  const Absent* absent = find_absent(unknown);
  // A section's own entry (rollout.tensor_model_parallel_size) says more than the name alone.
  const bool says_more = absent != nullptr && absent->word.find('.') != std::string_view::npos &&
                         translation != nullptr && absent->word.size() > translation->theirs.size();
  if (absent != nullptr && (translation == nullptr || says_more)) {
    return "unknown key; " + std::string(absent->sentence);
  }
  const std::string translated = translate(unknown);
  const std::string nearest = nearest_key(unknown);
  std::string text = "unknown key";
  if (!translated.empty()) {
    text += "; \"" + std::string(last_component(unknown)) + "\" of other systems is " + translated;
  }
  if (translated.empty() && !nearest.empty()) {
    text += "; did you mean " + nearest + "?";
  }
  if (translated.empty() && nearest.empty()) {
    text += "; `ringside check --defaults` lists every key";
  }
  return text;
}

}  // namespace ringside::rl
