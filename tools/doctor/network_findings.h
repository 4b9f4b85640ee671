// Reachability of addresses: those that this machine binds, and servers that it connects to.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tools/doctor/finding.h"

namespace ringside::tools {

struct HostPort {
  std::string host;
  int port = 0;
};

// Host and port of "tcp://HOST:PORT" or "http://HOST[:PORT][/PATH]". Port 0 = any free one.
// Throws: std::invalid_argument for other text.
HostPort host_and_port(const std::string& address);

// Whether a port of the loopback interface can be bound, and this machine's name be resolved.
std::vector<Finding> local_network_findings();

// An address of a recipe that the trainer binds. If it belongs to another machine, whether that
// answers. Closed ports of other machines are a warning: the trainer may start later.
// Blocks: for at most `deadline`, apart from the resolution of names.
Finding bind_finding(const std::string& key, const std::string& address,
                     std::chrono::milliseconds deadline);

// A server that the run connects to.
// Blocks: as bind_finding().
Finding server_finding(const std::string& key, const std::string& url,
                       std::chrono::milliseconds deadline);

}  // namespace ringside::tools
