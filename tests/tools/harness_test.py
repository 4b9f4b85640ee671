"""Harnesses of a run: functions that fail, files that cannot be used, and one that runs elsewhere.

Guards: an exception in an agent that ends the run or earns a reward; a misspelt function that is found when the run has
started; a rollout lost with the session of a harness that has gone.

Usage: harness_test.py RINGSIDE. Standard library only.
"""

import json
import re
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request

import quickstart_case

RINGSIDE = sys.argv.pop(1)
DEADLINE_S = 120


def post(url: str, body: dict) -> tuple[int, dict]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else {}
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class Harness(quickstart_case.QuickstartCase):
    def setUp(self):
        super().setUp()
        self.agent = self.folder / "agent.py"

    def command(self, name: str, *words) -> list[str]:
        return [RINGSIDE, name, *self.recipe("data.eval=", "rollout.reward=worker", "rollout.num_workers=1", "log.rollouts=true",
                                             "train.steps=2", *words)]

    def python(self) -> str:
        return f"rollout.harness=python({self.agent}:play)"

    def finished(self, *words) -> str:
        done = subprocess.run(self.command("run", "--run-dir", self.run_dir, *words), capture_output=True, text=True,
                              timeout=DEADLINE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        return done.stdout + done.stderr

    def test_a_file_that_cannot_be_used_is_named_before_the_run(self):
        for text, problem in (("def play(session)\n", r"agent\.py:1: SyntaxError"), ("import no_such_module\n", r"agent\.py:1: .*no_such"),
                              ("def other(session):\n    pass\n", r"agent\.py has no function play")):
            self.agent.write_text(text)
            done = subprocess.run(self.command("check", self.python()), capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertRegex(done.stdout + done.stderr, "rollout.harness.*" + problem)

    def test_an_exception_costs_its_sample_alone(self):
        self.agent.write_text("""
tries = {}

def play(session):
    place = session.group, session.sample
    tries[place] = tries.get(place, 0) + 1
    if session.sample == 1 and tries[place] == 1:
        raise ValueError("tool broke")
    answer = session.complete(session.record["prompt"], max_tokens=4)
    return {"tokens": answer["usage"]["completion_tokens"], "bias": -1.0}
""")
        log = self.finished(self.python())
        self.assertIn("agent.py:8: in play: ValueError: tool broke", log + (self.run_dir / "run.log").read_text())
        rollouts = self.lines("rollouts.jsonl")
        self.assertEqual(len(rollouts), 16)
        for rollout in rollouts:
            self.assertEqual(rollout["attempt"], int(rollout["sample_index"] == 1))
        self.assertIn("rewards/tokens/mean", self.lines("metrics.jsonl")[0])

    def test_held_out_records_are_played_by_the_harness_greedily(self):
        self.agent.write_text("""
import json, pathlib

def play(session):
    prompt = session.record["prompt"]
    texts = [session.complete(prompt, max_tokens=4)["choices"][0]["text"] for _ in range(2)]
    with open(pathlib.Path(__file__).with_name("played"), "a") as file:
        file.write(json.dumps([session.evaluation, prompt, *texts]) + "\\n")
    return 1.0 if session.evaluation else 0.25 * session.sample
""")
        held_out = self.data / "held_out.jsonl"
        self.finished(self.python(), f"data.eval={held_out}", "eval.every=2", "eval.by=workers", "eval.max_prompts=5")
        steps = self.lines("metrics.jsonl")
        evaluated = [line for line in steps if "eval_reward" in line]
        self.assertEqual([(line["step"], line["eval_reward"], line["eval/length"]) for line in evaluated],
                         [(0, 1.0, 8.0), (2, 1.0, 8.0)])
        self.assertEqual([line["reward"] for line in steps if line["step"] > 0], [0.375, 0.375])
        played = [json.loads(line) for line in (self.folder / "played").read_text().splitlines()]
        prompts = [json.loads(line)["prompt"] for line in held_out.read_text().splitlines()][:5]
        self.assertEqual(sorted(prompt for evaluation, prompt, *_ in played if evaluation), sorted(prompts * 2))
        self.assertTrue(all(first == second for evaluation, _, first, second in played if evaluation))
        self.assertFalse(all(first == second for evaluation, _, first, second in played if not evaluation))

    def test_an_evaluation_that_no_harness_could_play_is_refused(self):
        self.agent.write_text("def play(session):\n    return 1.0\n")
        done = subprocess.run(self.command("check", self.python(), "eval.every=1", f"data.eval={self.data / 'held_out.jsonl'}"),
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertRegex(done.stdout + done.stderr, r"eval\.by.* is embedded, but with rollout\.harness")

    def url(self, run: subprocess.Popen) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            self.assertIsNone(run.poll(), (self.folder / "log").read_text()[-2000:])
            log = self.run_dir / "run.log"
            texts = (self.folder / "log").read_text() + (log.read_text() if log.exists() else "")
            if found := re.search(r"gateway for the harness is at (http://\S+)", texts):
                return found[1]
            time.sleep(0.1)
        self.fail("no gateway")

    def play_all(self, url: str, forsaken: list):
        """Plays sessions until the run is over. The first one is claimed and never ended."""
        while True:
            try:
                status, claimed = post(f"{url}/sessions", {"wait_s": 5})
            except OSError:  # the worker has ended
                return
            if status == 410:
                return
            if status == 204:
                continue
            if not forsaken:
                forsaken.append(claimed)
                continue
            status, answer = post(f"{claimed['base_url']}/completions", {"prompt": claimed["record"]["prompt"], "max_tokens": 4})
            self.assertEqual(status, 200, answer)
            status, answer = post(f"{url}/sessions/{claimed['session']}/reward", {"reward": len(answer["choices"][0]["text"])})
            self.assertEqual(status, 200, answer)

    def test_a_harness_elsewhere_claims_sessions_and_a_forsaken_one_is_made_again(self):
        with open(self.folder / "log", "w") as log:
            run = subprocess.Popen(self.command("run", "--run-dir", self.run_dir, "rollout.harness=external",
                                                "rollout.harness_options.session_timeout_s=3"), stdout=log, stderr=log)
        self.addCleanup(lambda: (run.kill(), run.wait()))
        url, forsaken = self.url(run), []
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as late:  # of a client that is busy
            time.sleep(1.5)
            late.sendall(b"GET /v1/models HTTP/1.1\r\nHost: gateway\r\n\r\n")
            self.assertIn(b"200 OK", late.recv(4096))
        player = threading.Thread(target=self.play_all, args=(url, forsaken), daemon=True)
        player.start()
        self.assertEqual(run.wait(DEADLINE_S), 0, (self.folder / "log").read_text()[-2000:])
        rollouts = self.lines("rollouts.jsonl")
        self.assertEqual(len(rollouts), 16)
        again = [rollout for rollout in rollouts if rollout["attempt"] > 0]
        self.assertEqual([(r["group_id"], r["sample_index"]) for r in again], [(forsaken[0]["group"], forsaken[0]["sample"])])

    def test_a_request_that_is_no_session_s_is_refused_by_its_dialect(self):
        self.agent.write_text("""
import json, pathlib, urllib.error, urllib.request

def status(url, body, **headers):
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return [answer.status, json.loads(answer.read())]
    except urllib.error.HTTPError as error:
        return [error.code, json.loads(error.read())]

def play(session):
    host = session.base_url.split("/sessions")[0]
    chat = json.dumps({"messages": [{"role": "user", "content": "q"}], "max_tokens": 1}).encode()
    text = json.dumps({"prompt": "q", "max_tokens": 1}).encode()
    found = [status(host + "/v1/completions", text, Authorization="Bearer " + session.api_key),
             status(host + "/v1/completions", text, Authorization="Bearer nobody"),
             status(host + "/v1/messages", chat, **{"x-api-key": "nobody"}),
             status(session.base_url + "/completions", b"{"),
             status(session.base_url + "/chat/completions", chat)]
    pathlib.Path(__file__).with_name(f"found-{session.id}.json").write_text(json.dumps(found))
    return 1.0
""")
        self.finished(self.python(), "train.steps=1")
        files = list(self.folder.glob("found-*.json"))  # one a session: they run at the same time
        self.assertEqual(len(files), 8)
        good, nobody, theirs, broken, chat = json.loads(files[0].read_text())
        self.assertEqual(good[0], 200)
        self.assertEqual(nobody[0], 404)
        self.assertIn("no session 'nobody'", nobody[1]["error"]["message"])
        self.assertEqual([theirs[0], theirs[1]["type"], theirs[1]["error"]["type"]], [404, "error", "not_found_error"])
        self.assertEqual([broken[0], broken[1]["error"]["message"]], [400, "the body is no JSON"])
        self.assertEqual(chat[0], 400)  # the recipe has no chat template
        self.assertIn("data.chat_template", chat[1]["error"]["message"])


class Result(unittest.TestCase):
    def test_a_result_whose_answer_is_lost_is_sent_again(self):
        sys.path.insert(0, str(quickstart_case.ROOT / "rl/python"))
        import harness

        results = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            def serve():
                for answer in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"):
                    connection, _ = server.accept()
                    with connection, connection.makefile("rb") as request:
                        head = iter(request.readline, b"\r\n")
                        length = next(int(line.split(b":")[1]) for line in head if line.lower().startswith(b"content-length"))
                        while request.readline() != b"\r\n":
                            pass
                        results.append(json.loads(request.read(length)))
                        connection.sendall(answer)

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            harness.end(f"http://127.0.0.1:{server.getsockname()[1]}", "ID", {"reward": 1.0})
            thread.join(10)
        self.assertEqual(results, [{"reward": 1.0}] * 2)


if __name__ == "__main__":
    unittest.main()
