// Error for an address that cannot be bound.
#pragma once

#include <stdexcept>
#include <string>

namespace ringside::bridge {

struct BindError : std::runtime_error {
  // where: the address as given. why: the system's reason.
  BindError(std::string where, const std::string& why)
      : std::runtime_error("cannot bind " + where + ": " + why), address(std::move(where)) {}
  std::string address;  // as given
};

}  // namespace ringside::bridge
