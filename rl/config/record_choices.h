// Members of a data record that choose something for the samples of its prompt: its adapter, and by
// its source its teacher. Torch-free.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// A member of each record of data.train, and the words that it may be.
struct RecordChoice {
  std::string key;                 // of the configuration: "data.source_key"
  std::string member;              // its value
  std::string asked_by;            // the key whose value needs it
  std::vector<std::string> words;  // at least one
};

// The adapter that every record of prompts names; nullopt where the run has no named ones.
// Throws: as adapter_names().
std::optional<RecordChoice> adapter_choice(const Config& config);

// What the records of a run choose; empty: nothing. A record's kind is one
// number for all of its words: each word's place is a digit, the last choice's the lowest.
// Throws: as adapter_names() and teachers_of().
std::vector<RecordChoice> record_choices(const Config& config);

// The place of a choice's word among its words, of a record of this kind.
int64_t chosen_word(int64_t kind, std::span<const RecordChoice> choices, std::size_t choice);

// The place of the adapter among adapter_names(), for samples of this kind; 0 without names.
// Throws: as adapter_names().
int64_t adapter_of_kind(int64_t kind, const Config& config);

// The place of the teacher among teachers_of(), for samples of this kind.
// Throws: as teachers_of().
int64_t teacher_of_kind(int64_t kind, const Config& config);

}  // namespace ringside::rl
