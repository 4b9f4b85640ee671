// What the configurations of several systems have in common.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "tools/init/translator.h"

namespace ringside::tools {

// The first of these names that is written; the first of all where none is.
std::string first_written(const Translator& keys, std::initializer_list<std::string> names);

// model.path of a directory, or of a model's name on the hub, which must be downloaded.
void set_model(Translator& keys, std::string_view theirs);

// data.train and the like, of files or of a data set's name on the hub.
void set_data(Translator& keys, std::string_view theirs, std::string_view ours);

// Sets `ours` to whole / part, if it is whole. `what` names the quotient in a mistake at `key`.
void set_quotient(Translator& keys, std::string_view ours, int64_t whole, int64_t part,
                  std::string_view key, const std::string& what, const std::string& comment);

// A key of ours that counts steps, of theirs that counts optimizer steps.
void set_steps(Translator& keys, std::string_view theirs, std::string_view ours, int64_t per_step);

// optimizer.warmup_steps of a share of the run's optimizer steps, which are known if train.steps
// is set; else a line for the user. per_step: optimizer steps of a step.
void set_warmup_share(Translator& keys, std::string_view theirs, double share, int64_t per_step);

// train.steps of a number of passes over the prompts, which the file does not count.
void steps_of_epochs(Translator& keys, std::string_view theirs, std::string_view prompts_per_step);

// "[0.9, 0.95]" of AdamW.
void set_betas(Translator& keys, std::string_view theirs);

// Ranks that share the model: processes / ranks of a sequence.
void set_shards(Translator& keys, int64_t processes, int64_t sequence, const std::string& comment);

struct KnownReason {
  std::string_view key;  // with what is below it
  std::string_view reason;
};
// Lists keys that are often written and mean nothing here.
void leave_known(Translator& keys, std::initializer_list<KnownReason> reasons);

// Why a server is not in the recipe.
std::string server_reason(const std::string& name);

}  // namespace ringside::tools
