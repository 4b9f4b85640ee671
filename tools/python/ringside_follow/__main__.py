"""Command line: ringside-follow RUN_DIR --to wandb|mlflow|print."""

import argparse
import json
import pathlib
import sys

from . import follow, read_config


class ToPrint:
    def __init__(self, options: argparse.Namespace, config: dict):
        pass

    def log(self, step: int, metrics: dict[str, float]) -> None:
        print(json.dumps({"step": step, **metrics}), flush=True)

    def close(self) -> None:
        pass


class ToWandb:
    def __init__(self, options: argparse.Namespace, config: dict):
        import wandb
        self._run = wandb.init(project=options.project, name=options.name, config=config)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def close(self) -> None:
        self._run.finish()


class ToMlflow:
    # mlflow refuses other characters in names than these, letters and digits.
    ALLOWED = "_-. /"

    def __init__(self, options: argparse.Namespace, config: dict):
        import mlflow
        self._mlflow = mlflow
        mlflow.set_experiment(options.project)
        mlflow.start_run(run_name=options.name)
        parameters = flat(config)
        for begin in range(0, len(parameters), 100):  # the most that a call takes
            mlflow.log_params(dict(list(parameters.items())[begin:begin + 100]))

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._mlflow.log_metrics({"".join(c if c.isalnum() or c in self.ALLOWED else "_" for c in name): value
                                  for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


def flat(config: dict, before: str = "") -> dict[str, str]:
    found = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{before}{name}."))
        else:
            found[before + str(name)] = str(value)
    return found


SINKS = {"print": ToPrint, "wandb": ToWandb, "mlflow": ToMlflow}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="ringside-follow", description="Forwards the metrics of a Ringside run.")
    parser.add_argument("run_dir", type=pathlib.Path, help="the run's --run-dir")
    parser.add_argument("--to", choices=SINKS, required=True)
    parser.add_argument("--project", default="ringside", help="project (wandb) or experiment (mlflow)")
    parser.add_argument("--name", help="name of the run (default: that of its directory)")
    parser.add_argument("--once", action="store_true", help="forward what is there and end")
    options = parser.parse_args(arguments)
    if not options.run_dir.is_dir():
        parser.error(f"{options.run_dir} is no directory; expected the --run-dir of a run")
    options.name = options.name or options.run_dir.resolve().name
    try:
        sink = SINKS[options.to](options, read_config(options.run_dir))
    except ImportError as error:
        print(f"ringside-follow: {error}; install it with: pip install 'ringside-follow[{options.to}]'", file=sys.stderr)
        return 1
    try:
        for step, metrics in follow(options.run_dir, once=options.once):
            sink.log(step, metrics)
    except KeyboardInterrupt:
        pass
    finally:
        sink.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
