"""TensorBoard's own reader accepts our event files: every record, every value, and a resume in place of old steps.

usage: tensorboard_oracle.py WRITE_EVENTS_EXECUTABLE
"""

import glob
import os
import struct
import subprocess
import sys
import tempfile
import time

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], folder], check=True)
        files = sorted(glob.glob(os.path.join(folder, "events.out.tfevents.*")))
        assert len(files) == 2, files
        counts = [sum(1 for _ in EventFileLoader(path).Load()) for path in files]
        assert counts == [6, 3], counts  # version + 5 steps; version, session start, 1 step

        reader = EventAccumulator(folder)
        reader.Reload()
        assert sorted(reader.Tags()["scalars"]) == ["loss/kl", "reward"], reader.Tags()
        rewards = [(e.step, e.value) for e in reader.Scalars("reward")]
        assert rewards == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 40.0)], rewards
        kl = [(e.step, e.value) for e in reader.Scalars("loss/kl")]
        assert kl == [(s, float32(-1.0 / s)) for s in (1, 2, 3)], kl
        assert abs(reader.Scalars("reward")[0].wall_time - time.time()) < 600


if __name__ == "__main__":
    main()
