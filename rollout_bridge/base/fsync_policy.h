// When records appended to a journal are synced to disk.
#pragma once

namespace ringside::bridge {

// kOff and kInterval survive the death of the process, because the page cache does. Only kEvery
// survives the death of the machine without loss.
enum class FsyncPolicy { kEvery, kInterval, kOff };

}  // namespace ringside::bridge
