// Trainer addresses for a worker: waits for the run's endpoint file, with a log line while it
// waits. Torch-free.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "rl/report/wait_notice.h"
#include "rl/setup/endpoint_file.h"
#include "rl/worker/link_events.h"

namespace ringside::rl {

// Whether one can connect to `address`: port 0 and * are for binding only.
bool names_port(const std::string& address);

// The reason why `found`, read from RUN_DIR/bridge/endpoint.json, names no usable trainer; for the
// log.
std::string why_no_trainer(const std::filesystem::path& endpoint_file,
                           const std::optional<EndpointAddresses>& found);

// The addresses that the endpoint file names now; nullopt when there is no file, and when it does
// not parse: the next trainer replaces it.
std::optional<EndpointAddresses> current_trainer(const std::filesystem::path& endpoint_file);

// Waits until the endpoint file names a trainer whose run has not ended.
// Blocks: until then.
// A file that does not parse is waited over: the next trainer replaces it.
// Throws: std::runtime_error when settings.should_stop returns true before, or when the run
// directory is no directory.
EndpointAddresses wait_for_trainer(const WorkerSettings& settings);

}  // namespace ringside::rl
