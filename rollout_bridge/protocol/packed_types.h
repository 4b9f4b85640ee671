// Types of schema.h as messages carry them: their wire names, and how msgpack packs them.
#pragma once

#include <cstdint>
#include <limits>
#include <msgpack.hpp>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/protocol/wire.h"

namespace ringside::bridge {

// A field that has another type on the wire. T may be const.
template <class T>
struct AsDouble {  // of a float
  T& value;
};
template <class T>
struct AsMinusOne {  // of an optional number >= 0: nullopt
  T& value;
};
// clang 14 deduces nothing for aggregates by itself.
template <class T>
AsDouble(T&) -> AsDouble<T>;
template <class T>
AsMinusOne(T&) -> AsMinusOne<T>;

// Wire names of the types of schema.h that messages carry as they are: calls visit(name, field) for
// each field. `value` may be const. A rollout's lists of tokens, spans, turns and branches are
// frames (codec.h).
template <class Value, class Visit>
  requires std::is_same_v<std::remove_const_t<Value>, Rollout>
void visit_fields(Value& value, Visit visit) {
  visit("rollout_id", value.rollout_id);
  visit("attempt", value.attempt);
  visit("group_id", value.group_id);
  visit("group_size", value.group_size);
  visit("sample_index", value.sample_index);
  visit("prompt_id", value.prompt_id);
  visit("temperature", AsDouble{value.temperature});
  visit("top_p", AsDouble{value.top_p});
  visit("top_k", value.top_k);
  visit("trainer_term", value.trainer_term);
  visit("finish_reason", value.finish_reason);
  visit("rewards", value.rewards);
  visit("failure", value.failure);
}
template <class Value, class Visit>
  requires std::is_same_v<std::remove_const_t<Value>, Manifest>
void visit_fields(Value& value, Visit visit) {
  visit("run_id", value.run_id);
  visit("trainer_term", value.trainer_term);
  visit("version", value.version);
  visit("base_version", AsMinusOne{value.base_version});
  visit("encoding", value.encoding);
  visit("tensors", value.tensors);
  visit("root_hash", value.root_hash);
}
template <class Value, class Visit>
  requires std::is_same_v<std::remove_const_t<Value>, Grant>
void visit_fields(Value& value, Visit visit) {
  visit("group_id", value.group_id);
  visit("group_size", value.group_size);
  visit("min_version", value.min_version);
  visit("attempt", value.attempt);
  visit("sample_indices", value.sample_indices);
  visit("held_out", value.held_out);
}
template <class Value, class Visit>
  requires std::is_same_v<std::remove_const_t<Value>, Withdrawal>
void visit_fields(Value& value, Visit visit) {
  visit("group_id", value.group_id);
  visit("sample_indices", value.sample_indices);
}
template <class Value, class Visit>
  requires std::is_same_v<std::remove_const_t<Value>, TensorEntry>
void visit_fields(Value& value, Visit visit) {
  visit("name", value.name);
  visit("dtype", value.dtype);
  visit("shape", value.shape);
  visit("offset", value.offset);
  visit("bytes", value.bytes);
  visit("xxh3", value.xxh3);
  visit("encoding", value.encoding);
  visit("changed", value.changed);
  visit("payload_bytes", value.payload_bytes);
}

// Takes every field. No lambda: with one, clang 14 finds the concept true of every type.
struct TakesField {
  // Of any type; does nothing.
  template <class Field>
  void operator()(const char* /*name*/, const Field& /*field*/) const {}
};
template <class Value>
concept HasVisitedFields = requires(Value& value) { visit_fields(value, TakesField{}); };

}  // namespace ringside::bridge

namespace msgpack {
// How msgpack reads and writes fields of the types that have visit_fields().
MSGPACK_API_VERSION_NAMESPACE(MSGPACK_DEFAULT_API_NS) {
  namespace adaptor {

  template <class T>
  struct pack<ringside::bridge::AsDouble<T>> {
    template <class Stream>
    packer<Stream>& operator()(packer<Stream>& out, ringside::bridge::AsDouble<T> field) const {
      return out.pack(static_cast<double>(field.value));
    }
  };

  // A number beyond fp32's range becomes infinite, which validate() refuses. The cast alone would
  // be undefined behaviour.
  template <class T>
  struct convert<ringside::bridge::AsDouble<T>> {
    const msgpack::object& operator()(const msgpack::object& from,
                                      ringside::bridge::AsDouble<T>& field) const {
      const auto value = from.as<double>();
      constexpr double kMax = std::numeric_limits<T>::max();
      field.value = value > kMax || value < -kMax ? std::numeric_limits<T>::infinity()
                                                  : static_cast<T>(value);
      return from;
    }
  };

  template <class T>
  struct pack<ringside::bridge::AsMinusOne<T>> {
    template <class Stream>
    packer<Stream>& operator()(packer<Stream>& out, ringside::bridge::AsMinusOne<T> field) const {
      return out.pack(field.value.value_or(-1));
    }
  };

  template <class T>
  struct convert<ringside::bridge::AsMinusOne<T>> {
    const msgpack::object& operator()(const msgpack::object& from,
                                      ringside::bridge::AsMinusOne<T>& field) const {
      const auto value = from.as<typename T::value_type>();
      field.value = value < 0 ? T() : T(value);
      return from;
    }
  };

  // By name.
  template <>
  struct pack<ringside::bridge::FinishReason> {
    template <class Stream>
    packer<Stream>& operator()(packer<Stream>& out, ringside::bridge::FinishReason reason) const {
      return out.pack(std::string_view(ringside::bridge::finish_reason_name(reason)));
    }
  };

  template <>
  struct convert<ringside::bridge::FinishReason> {
    const msgpack::object& operator()(const msgpack::object& from,
                                      ringside::bridge::FinishReason& reason) const {
      const auto name = from.as<std::string>();
      const auto known = ringside::bridge::finish_reason_from_name(name);
      if (!known) {
        throw ringside::bridge::InvalidText("finish_reason '" + name +
                                            "', expected stop, length, aborted or error");
      }
      reason = *known;
      return from;
    }
  };

  }  // namespace adaptor
}

// The types with visit_fields().
MSGPACK_API_VERSION_NAMESPACE(MSGPACK_DEFAULT_API_NS) {
  namespace adaptor {

  // A map, as MSGPACK_DEFINE_MAP writes it.
  template <ringside::bridge::HasVisitedFields Value>
  struct pack<Value> {
    template <class Stream>
    packer<Stream>& operator()(packer<Stream>& out, const Value& value) const {
      uint32_t count = 0;
      visit_fields(value, [&](const char*, const auto&) { ++count; });
      out.pack_map(count);
      visit_fields(value, [&](std::string_view name, const auto& field) {
        out.pack(name);
        out.pack(field);
      });
      return out;
    }
  };

  // As MSGPACK_DEFINE_MAP does, without building a std::map for each of a model's many tensors.
  template <ringside::bridge::HasVisitedFields Value>
  struct convert<Value> {
    const msgpack::object& operator()(const msgpack::object& from, Value& value) const {
      if (from.type != msgpack::type::MAP) {
        throw msgpack::type_error();
      }
      for (const msgpack::object_kv& item : std::span(from.via.map.ptr, from.via.map.size)) {
        const auto key = item.key.as<std::string_view>();
        visit_fields(value, [&](const char* name, auto&& field) {
          if (key == name) {
            item.val.convert(field);
          }
        });
      }
      return from;
    }
  };

  }  // namespace adaptor
}
}  // namespace msgpack
