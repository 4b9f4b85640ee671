// Fields of a request's JSON body, with errors that name them. Torch-free.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ringside::rl {

// All throw RequestRefused (400) for a field of another form. A null is an absent field.
class RequestFields {
 public:
  // Throws: RequestRefused (400) unless `body` is an object. It must outlive this.
  explicit RequestFields(const nlohmann::ordered_json& body);

  // Null if absent.
  const nlohmann::ordered_json* find(const char* key) const;
  // Throws also if absent.
  const nlohmann::ordered_json& required(const char* key) const;
  std::string text(const char* key) const;  // "" if absent
  bool flag(const char* key) const;         // false if absent
  // `absent`, or an integer in [low, high].
  int64_t integer(const char* key, int64_t absent, int64_t low, int64_t high) const;
  std::vector<std::string> texts(const char* key) const;  // one text or a list, none of them empty

 private:
  const nlohmann::ordered_json& body_;
};

}  // namespace ringside::rl
