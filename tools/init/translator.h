// Reads the keys of another system's configuration and collects a recipe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "rl/config/schema.h"
#include "tools/init/foreign_config.h"

namespace ringside::tools {

// A key of the recipe.
struct Setting {
  std::string key;      // dotted
  std::string text;     // without quotes
  std::string comment;  // where it comes from
};

enum class LeftWhy {
  kUnknown,        // neither the other system's translation nor Ringside knows the name
  kNoCounterpart,  // Ringside has nothing like it, or not with this value
  kDefault,        // the recipe has this value already, without the key
};

// A key of the other system that is not in the recipe.
struct LeftKey {
  std::string what;  // "trainer.logger: console, wandb, line 40"
  LeftWhy why = LeftWhy::kUnknown;
  std::string reason;  // kDefault: "", or our key
};

class Translator {
 public:
  // config must outlive it.
  explicit Translator(const ForeignConfig& config);
  Translator(const Translator&) = delete;  // slots_ points into defaults_
  Translator& operator=(const Translator&) = delete;

  // Whether a key, or any key below it, is written.
  bool has(std::string_view key) const;

  // The value of a key; none where it is not written, is null, or needs what the file does not
  // hold. A value of another kind is a mistake. Reading does not settle a key: finish() still
  // translates it by its name, unless it is listed or the comment of a setting names it.
  std::optional<std::string> text(std::string_view key);
  std::optional<double> number(std::string_view key);
  std::optional<int64_t> count(std::string_view key);
  std::optional<bool> flag(std::string_view key);
  std::vector<std::string> items(std::string_view key);

  // "data.train_batch_size: 512, line 37": where a value comes from. For several keys all of them.
  std::string from(std::initializer_list<std::string_view> keys) const;

  // Sets a key of the recipe. Another value for it from another key is a mistake.
  void set(std::string_view ours, const std::string& text, const std::string& comment);
  void set(std::string_view ours, double value, const std::string& comment);
  // Sets a key to the value of theirs, if that is written.
  void same(std::string_view theirs, std::string_view ours);
  // The same, for true and false, to one of two texts; "" = nothing is set.
  void choose(std::string_view theirs, std::string_view ours, const std::string& if_true,
              const std::string& if_false);

  // Lists a key, if it is written, as one without a counterpart.
  void leave(std::string_view theirs, const std::string& reason);
  // Lists a key whose value says "off" or "as by default" in a way of its own, such as -1.
  void leave_off(std::string_view theirs);
  // Lists all keys below a name that nothing has named yet.
  void leave_all(std::string_view prefix, const std::string& reason);
  // What the user has to do by hand.
  void to_do(const std::string& sentence) { to_dos_.push_back(sentence); }
  // A mistake at a key.
  void mistake(std::string_view key, const std::string& what);

  // Translates what is not taken yet by rl/config's names of other systems, drops what the preset
  // and the defaults have already and what the rest of the recipe does not read, and lists every
  // key of the file that is in no comment.
  void finish();

  const std::vector<Setting>& settings() const { return settings_; }
  const std::vector<LeftKey>& left() const { return left_; }
  const std::vector<std::string>& to_dos() const { return to_dos_; }
  const std::vector<std::string>& mistakes() const { return mistakes_; }
  // The value that the recipe has for a key, "" = none is set.
  std::string value_of(std::string_view ours) const;

 private:
  const ForeignValue* read(std::string_view key);
  // Whether a key is listed, or named by the comment of a setting.
  bool is_settled(const ForeignValue& value) const;
  void translate_by_name(const ForeignValue& value);
  std::string our_value(const std::string& key, const std::string& text, std::string* rest);
  void drop_defaults();
  void drop_refused();
  void list(const ForeignValue& value, LeftWhy why, const std::string& reason);

  const ForeignConfig& config_;
  std::map<std::string, const ForeignValue*, std::less<>> values_;  // the last of each key
  std::set<std::string, std::less<>> read_;
  std::set<std::string, std::less<>> listed_;
  rl::Config defaults_;
  std::map<std::string, rl::Slot, std::less<>> slots_;  // of defaults_
  std::vector<Setting> settings_;
  std::vector<LeftKey> left_;
  std::vector<std::string> to_dos_;
  std::vector<std::string> mistakes_;
};

// A number as YAML writes it in a recipe: 1.0e-06, 0.2, 512.
std::string number_text(double value);

}  // namespace ringside::tools
