"""Two Ray nodes on this machine and ray_driver.py on them. A worker is killed and one is added; then the driver gets
SIGTERM, and the same command is started again. Used by test_ray.sh.

Usage: ray_cluster_test.py RUN_DIR RECIPE ...
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from ray.cluster_utils import Cluster

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 300
STOPPED = 128 + signal.SIGTERM


def wait_for(what: str, log: pathlib.Path, driver: subprocess.Popen, found):
    deadline = time.monotonic() + DEADLINE_S
    while not (value := found()):
        if driver.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"launch test: {what}: not seen\n{log.read_text()}")
        time.sleep(0.1)
    print(f"launch test: {what}", flush=True)
    return value


def main() -> int:
    run_dir, recipe = pathlib.Path(sys.argv[1]), sys.argv[2:]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    log = run_dir.with_suffix(".log")

    def lines(pattern: str) -> list[str]:
        return re.findall(pattern, log.read_text())

    def steps() -> int:
        path = run_dir / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    with log.open("w") as out:
        command = [sys.executable, HERE / "ray_driver.py", *recipe, "--run-dir", run_dir, "--address", cluster.address]
        driver = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            wait_for("five steps", log, driver, lambda: steps() >= 5)
            os.kill(int(lines(r"worker0 runs on \S+, pid (\d+)")[0]), signal.SIGKILL)
            wait_for("the killed worker is started again", log, driver, lambda: len(lines("worker0 runs on")) == 2)
            (run_dir / "launch").mkdir()
            (run_dir / "launch/workers").write_text("2")
            wait_for("a second worker is added", log, driver, lambda: lines("worker1 runs on"))
            wait_for("it has joined the run", log, driver, lambda: lines("worker1 joined"))
            before = steps()
            wait_for("the run goes on", log, driver, lambda: steps() > before)
            driver.send_signal(signal.SIGTERM)
            stopped = driver.wait(DEADLINE_S)
            saved = sorted((run_dir / "checkpoints").glob("step-*/manifest.json"))
            if stopped != STOPPED or not saved:
                sys.exit(f"launch test: after SIGTERM: exit code {stopped}, expected {STOPPED}; saved: {saved}\n{log.read_text()}")
            print(f"launch test: SIGTERM: exit code {stopped} after step {steps()}, {saved[-1].parent.name} saved", flush=True)
            driver = subprocess.Popen(command, stdout=out, stderr=out)
            code = driver.wait(DEADLINE_S)
        finally:
            driver.kill()
            cluster.shutdown()
    if code != 0:
        print(log.read_text(), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
