#include "rollout_bridge/weights/manifest_codec.h"

#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::bridge {

std::vector<uint8_t> encode_manifest(const Manifest& m) {
  msgpack::sbuffer out;
  msgpack::pack(out, m);
  return std::vector<uint8_t>(out.data(), out.data() + out.size());
}

Result<Manifest> decode_manifest(Frame bytes, const Limits& limits) {
  if (bytes.size() > limits.max_manifest_bytes) {
    return Error{Reason::kLimit, "manifest of " + std::to_string(bytes.size()) + " bytes, limit " +
                                     std::to_string(limits.max_manifest_bytes)};
  }
  Manifest m;
  m.encoding.clear();  // it must be stated
  try {
    const msgpack::unpack_limit unpack_limit(limits.max_tensors, 64, limits.max_string_bytes, 0, 0,
                                             8);
    std::size_t end = 0;
    const auto handle = msgpack::unpack(reinterpret_cast<const char*>(bytes.data()), bytes.size(),
                                        end, nullptr, nullptr, unpack_limit);
    if (end != bytes.size()) {
      return Error{Reason::kMalformed, "manifest: map ends at byte " + std::to_string(end) +
                                           " of " + std::to_string(bytes.size())};
    }
    if (handle.get().type != msgpack::type::MAP) {
      return Error{Reason::kMalformed, "manifest: not a msgpack map"};
    }
    handle.get().convert(m);
  } catch (const msgpack::size_overflow& e) {
    return Error{Reason::kLimit, std::string("manifest: ") + e.what()};
  } catch (const msgpack::unpack_error& e) {
    return Error{Reason::kMalformed, std::string("manifest: ") + e.what()};
  } catch (const msgpack::type_error&) {
    return Error{Reason::kMalformed, "manifest: a field has the wrong type"};
  }
  if (Status s = validate(m, limits); !s) {
    return s.error();
  }
  return m;
}

}  // namespace ringside::bridge
