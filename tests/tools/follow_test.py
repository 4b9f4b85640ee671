"""The follower of tools/python: what reaches wandb and mlflow, with stand-ins for both modules.

Guards: half a line taken for a whole one, steps lost or sent twice over a resumed run, numbers that are not finite, names that
mlflow refuses. Usage: follow_test.py. Standard library only.
"""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import threading
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/python"))
import ringside_follow
from ringside_follow.__main__ import main


class FakeWandb(types.ModuleType):
    def __init__(self):
        super().__init__("wandb")
        self.rows, self.defined, self.finished = [], [], False

    def init(self, **options):
        self.options = options
        return self

    def define_metric(self, name, step_metric=None):
        self.defined.append((name, step_metric))

    def log(self, row):
        self.rows.append(row)

    def finish(self):
        self.finished = True


class FakeMlflow(types.ModuleType):
    def __init__(self):
        super().__init__("mlflow")
        self.calls, self.parameters = [], {}

    def set_experiment(self, name):
        self.experiment = name

    def start_run(self, run_name):
        self.run_name = run_name

    def log_params(self, parameters):
        assert len(parameters) <= 100
        self.parameters.update(parameters)

    def log_metrics(self, metrics, step):
        self.calls.append((step, metrics))

    def end_run(self):
        self.ended = True


class Follow(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_dir = pathlib.Path(folder.name) / "my-run"
        self.run_dir.mkdir()
        self.metrics = self.run_dir / "metrics.jsonl"

    def write(self, *lines, mode="a"):
        with open(self.metrics, mode) as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def put(self, module):
        sys.modules[module.__name__] = module
        self.addCleanup(sys.modules.pop, module.__name__)
        return module

    def test_wandb_gets_finite_metrics_over_their_step(self):
        self.write({"step": 1, "reward": 0.5, "loss": None, "non_finite": {"loss": "nan"}, "updates": [{"loss": 1}]}, {"step": 2, "reward": 0.75})
        wandb = self.put(FakeWandb())
        self.assertEqual(main([str(self.run_dir), "--to", "wandb", "--project", "p", "--once"]), 0)
        self.assertEqual(wandb.rows, [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.75}])
        self.assertEqual((wandb.options["project"], wandb.options["name"]), ("p", "my-run"))
        self.assertIn(("*", "step"), wandb.defined)
        self.assertTrue(wandb.finished)

    def test_mlflow_gets_steps_names_it_takes_and_flat_parameters(self):
        self.write({"step": 3, "eval/pass@1": 0.5, "rewards/a/mean": 1})
        (self.run_dir / "config.yaml").write_text("seed: 1\n")
        mlflow = self.put(FakeMlflow())
        yaml = types.ModuleType("yaml")
        yaml.safe_load = lambda text: {"train": {"steps": 5}, **{f"key{i}": i for i in range(150)}}
        self.put(yaml)
        self.assertEqual(main([str(self.run_dir), "--to", "mlflow", "--once"]), 0)
        self.assertEqual(mlflow.calls, [(3, {"eval/pass_1": 0.5, "rewards/a/mean": 1.0})])
        self.assertEqual(len(mlflow.parameters), 151)
        self.assertEqual(mlflow.parameters["train.steps"], "5")

    def test_a_missing_module_is_named_with_what_installs_it(self):
        self.write({"step": 1})
        sys.modules["wandb"] = None  # import raises ImportError
        self.addCleanup(sys.modules.pop, "wandb")
        error = io.StringIO()
        with contextlib.redirect_stderr(error):
            self.assertEqual(main([str(self.run_dir), "--to", "wandb", "--once"]), 1)
        self.assertIn("ringside-follow[wandb]", error.getvalue())

    def test_a_line_is_read_when_it_is_whole_and_a_resumed_file_from_its_beginning(self):
        (self.run_dir / "trainer.pid").write_text(f"{os.getpid()}\n")
        self.write({"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}, {"step": 3, "reward": 0.3})
        with open(self.metrics, "a") as file:
            file.write('{"step": 4, "rew')
        found = []
        reached = threading.Event()

        def read():
            for step, metrics in ringside_follow.follow(self.run_dir, poll_s=0.01):
                found.append((step, metrics["reward"]))
                if len(found) in (3, 5):
                    reached.set()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        self.assertTrue(reached.wait(20))
        self.assertEqual(found, [(1, 0.1), (2, 0.2), (3, 0.3)])
        reached.clear()
        # The run resumes from step 1: the same line 1, others after it.
        fresh = self.run_dir / "fresh"
        fresh.write_text("".join(json.dumps(line) + "\n" for line in ({"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.25}, {"step": 3, "reward": 0.35})))
        os.replace(fresh, self.metrics)
        self.assertTrue(reached.wait(20))
        self.assertEqual(found[3:], [(2, 0.25), (3, 0.35)])
        (self.run_dir / "trainer.pid").unlink()
        thread.join(20)
        self.assertFalse(thread.is_alive())

    def test_another_file_is_refused_by_its_line(self):
        self.metrics.write_text("{\"steps\": 1}\n")
        with self.assertRaisesRegex(ValueError, "metrics.jsonl.*integer \"step\""):
            list(ringside_follow.follow(self.run_dir, once=True))


if __name__ == "__main__":
    unittest.main(verbosity=2)
