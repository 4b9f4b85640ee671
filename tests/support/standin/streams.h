// Current device and streams of a thread. No torch.
#pragma once

#include <cstdint>

#include "tests/support/standin/address.h"

namespace ringside::standin {

// The calling thread's; 0 until another is set.
int current_device();
void set_current_device(int device);

// Of the calling thread; the default stream until another is set.
StreamKey current_stream(int device);
void set_current_stream(StreamKey stream);

// A stream of its own.
// Throws: std::runtime_error after 10000 streams: a leak of the program under test.
StreamKey new_stream(int device);

}  // namespace ringside::standin
