"""A reward model over HTTP: prefers completions of 20 characters, and says so with a number from 0 to 1.

    POST {"prompt": ..., "completion": ..., "answer": ...}   ->   {"reward": 0.85}

Put a learned reward model in the place of score(). Usage: reward_server.py [PORT]
"""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WANTED = 20


def score(prompt: str, completion: str) -> float:
    return max(0.0, 1 - abs(len(completion) - WANTED) / WANTED)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps the connection open between requests
    wbufsize = -1  # head and body in one packet: two would wait for the acknowledgement of the first

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps({"reward": score(request["prompt"], request["completion"])}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8765), Handler).serve_forever()
