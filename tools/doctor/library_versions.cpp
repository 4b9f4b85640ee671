#include "tools/doctor/library_versions.h"

#include <gnu/libc-version.h>
#include <xxhash.h>
#include <zmq.h>
#include <zstd.h>

#include <nlohmann/json.hpp>

namespace ringside::tools {

std::string library_versions() {
  int major = 0, minor = 0, patch = 0;
  zmq_version(&major, &minor, &patch);
  const auto dotted = [](int a, int b, int c) {
    return std::to_string(a) + "." + std::to_string(b) + "." + std::to_string(c);
  };
  const auto xxhash = static_cast<int>(XXH_versionNumber());
  return "glibc " + std::string(gnu_get_libc_version()) + ", libzmq " +
         dotted(major, minor, patch) + (zmq_has("curve") == 1 ? " with CURVE" : " without CURVE") +
         ", libzstd " + ZSTD_versionString() + ", libxxhash " +
         dotted(xxhash / 10000, xxhash / 100 % 100, xxhash % 100) + ", nlohmann-json " +
         dotted(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                NLOHMANN_JSON_VERSION_PATCH);
}

}  // namespace ringside::tools
