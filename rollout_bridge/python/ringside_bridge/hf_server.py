"""A small inference server: any causal LM of transformers behind HTTP, for models and machines without a faster one.

    python -m ringside_bridge.hf_server --model DIR [--host 127.0.0.1] [--port 0] [--dtype float32] [--device cpu]

prints `listening on http://HOST:PORT` once the model is there. Bodies and answers are JSON; what is wrong with a request
comes back as {"error": sentence}: 400 bad value, 404 no such path, 411/413 length of the body, 502 and 504 the source of a
pull refuses or stays silent, 503 the weights are torn, 500 anything else.

    POST /generate {"requests": [{"prompt_ids": [int], "max_tokens": int, "temperature": 1.0, "top_p": 1.0, "top_k": 0,
                                  "stop_ids": [int], "seed": 0, "request_id": ""}]}
      -> {"results": [{"completion_ids", "logprobs", "finish_reason": "stop"|"length", "version"}]}    in the same order
         One batch, with what others ask for meanwhile. logprobs are those of the distribution sampled from, after temperature, top-k and top-p; a completion
         ends with the stop id (the model's own end ids or one of stop_ids) or after max_tokens. Greedy: top_k 1. The
         same seed is the same sample in any batch but for rounding. One version throughout: weights change in between.
    POST /score {"requests": [{"ids": [int]}]} -> {"results": [{"logprobs": one fewer than ids}]}        temperature 1
    POST /load {"path": DIR, "version": int} -> {"version"}          the safetensors of a Hugging Face directory
    POST /load_adapter {"path": DIR, "version": int} -> {"version"}  a PEFT directory of low-rank adapters, on top of the
         weights that are loaded, in place of earlier adapters; /load and /pull drop it
    POST /pull {"address", "manifest": base64, "run_id", "trainer_term": int, "timeout_s": 300, "server_key": "",
                "secret_key_file": ""} -> {"version", "root_hash"}   from a weights socket of the bridge, see pull.py
         Both check every name, shape and (pull) hash before anything is copied; on 400, 502, 504 the old weights stand.
    GET /health -> {"status": "ok", "version": int}                  -1 before the first load or pull
    GET /info -> {"vocab_size", "model_type", "max_positions"}

Whoever reaches the port can read files as this user (/load) and change the model: only addresses of this machine are
bound unless --allow-remote is given.
"""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from .checkpoint import TornModel
from .batcher import Batcher
from .pull import curve_keys, decode_manifest, pull
from .wire import WireError

_MAX_BODY = 64 << 20
_MAX_REQUESTS = 4096
_BATCH = 256  # requests of several callers computed together
_KINDS = {"int": int, "float": (int, float), "str": str, "list[int]": list}


def fields(body, names: dict[str, str], defaults: dict) -> dict:
    """The members of a JSON object, each of its kind; ValueError for one that lacks, is of another kind, or unknown."""
    if not isinstance(body, dict):
        raise ValueError(f"expected an object, got {type(body).__name__}")
    unknown = body.keys() - names.keys()
    if unknown:
        raise ValueError(f"unknown field {sorted(unknown)[0]}, expected {', '.join(names)}")
    found = dict(defaults)
    for name, kind in names.items():
        value = body.get(name)
        if value is None:
            if name not in defaults:
                raise ValueError(f"{name} is missing")
            continue
        items = value if kind == "list[int]" and isinstance(value, list) else []
        if (isinstance(value, bool) or not isinstance(value, _KINDS[kind])
                or any(type(item) is not int for item in items)):
            raise ValueError(f"{name} is not {kind}")
        found[name] = value
    return found


class Service:
    """The paths as functions of their JSON bodies. Thread-safe."""

    def __init__(self, model):
        from .hf_model import Request

        self._model, self._request = model, Request
        self._generate = Batcher(model.generate, _BATCH)
        self._pull = threading.Lock()  # one set of weights in host memory at a time
        own = dataclasses.fields(Request)
        self._names = {f.name: f.type for f in own}
        self._defaults = {f.name: (f.default_factory() if f.default is dataclasses.MISSING else f.default) for f in own
                          if f.name not in ("prompt_ids", "max_tokens")}

    def generate(self, body) -> dict:
        requests = [self._request(**item) for item in self._items(body, self._names, self._defaults)]
        for request in requests:
            self._model.check(request)  # before it shares a batch with anybody's
        return {"results": self._generate(requests)}

    def score(self, body) -> dict:
        return {"results": [{"logprobs": self._model.score(item["ids"])}
                            for item in self._items(body, {"ids": "list[int]"}, {})]}

    def load(self, body) -> dict:
        asked = fields(body, {"path": "str", "version": "int"}, {})
        if asked["version"] < 0:
            raise ValueError(f"version = {asked['version']}, expected >= 0")
        self._model.load(asked["path"], asked["version"])
        return {"version": asked["version"]}

    def load_adapter(self, body) -> dict:
        asked = fields(body, {"path": "str", "version": "int"}, {})
        if asked["version"] < 0:
            raise ValueError(f"version = {asked['version']}, expected >= 0")
        self._model.load_adapter(asked["path"], asked["version"])
        return {"version": asked["version"]}

    def pull(self, body) -> dict:
        names = {"address": "str", "manifest": "str", "run_id": "str", "trainer_term": "int", "timeout_s": "float",
                 "server_key": "str", "secret_key_file": "str"}
        asked = fields(body, names, {"timeout_s": 300.0, "server_key": "", "secret_key_file": ""})
        manifest = decode_manifest(asked["manifest"], asked["run_id"], asked["trainer_term"])
        curve = curve_keys(asked["server_key"], asked["secret_key_file"])
        with self._pull:
            pulled = pull(asked["address"], manifest, asked["timeout_s"], curve)
            return {"version": manifest["version"], "root_hash": self._model.install(pulled)}

    def health(self) -> dict:
        if self._model.torn:
            raise TornModel("the model is torn")
        return {"status": "ok", "version": self._model.version}

    def info(self) -> dict:
        return {name: getattr(self._model, name) for name in ("vocab_size", "model_type", "max_positions")}

    @staticmethod
    def _items(body, names: dict[str, str], defaults: dict) -> list[dict]:
        requests = body.get("requests") if isinstance(body, dict) else None
        if not isinstance(requests, list) or len(requests) > _MAX_REQUESTS:
            raise ValueError(f"requests is not a list of at most {_MAX_REQUESTS}")
        found = []
        for index, item in enumerate(requests):
            try:
                found.append(fields(item, names, defaults))
            except ValueError as error:
                raise ValueError(f"requests[{index}]: {error}") from error
        return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 300  # seconds a connection may idle
    service: Service  # of the subclass that serve() makes

    def do_GET(self) -> None:
        self._answer({"/health": self.service.health, "/info": self.service.info}, None)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _MAX_BODY:
            self.close_connection = True  # the body stays unread
            self._send(413 if length.isdigit() else 411, {"error": f"Content-Length '{length}', limit {_MAX_BODY}"})
            return
        own = self.service
        self._answer({"/generate": own.generate, "/score": own.score, "/load": own.load,
                      "/load_adapter": own.load_adapter, "/pull": own.pull},
                     self.rfile.read(int(length)))

    def _answer(self, paths: dict, text: bytes | None) -> None:
        function = paths.get(self.path)
        if function is None:
            self._send(404, {"error": f"{self.command} {self.path}: no such path, expected {', '.join(paths)}"})
            return
        try:
            status, answer = 200, function() if text is None else function(json.loads(text))
        except WireError as error:
            status, answer = 502, {"error": str(error)}
        except TimeoutError as error:
            status, answer = 504, {"error": str(error)}
        except (ValueError, OSError) as error:
            status, answer = 400, {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - the server goes on
            status = 503 if isinstance(error, TornModel) else 500
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._send(status, answer)

    def _send(self, status: int, answer: dict) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # socketserver's 5 resets the connections of a worker that asks for a batch at once

    def __init__(self, host: str, port: int, service: Service):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), type("BoundHandler", (Handler,), {"service": service}))


def is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main() -> int:
    parser = argparse.ArgumentParser(description="Serves a causal LM of transformers to a rollout worker.")
    parser.add_argument("--model", required=True, help="Hugging Face directory")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any, see the line it prints")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16", "float64"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--allow-remote", action="store_true", help="bind an address that other machines reach")
    asked = parser.parse_args()
    if not asked.allow_remote and not is_local(asked.host):
        parser.error(f"--host {asked.host} is not an address of this machine alone: --allow-remote")
    from .hf_model import HfModel

    service = Service(HfModel(asked.model, asked.dtype, asked.device))
    with Server(asked.host, asked.port, service) as server:
        host = f"[{asked.host}]" if ":" in asked.host else asked.host
        print(f"listening on http://{host}:{server.server_address[1]}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
