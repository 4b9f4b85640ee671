"""Serves requests of the parent on descriptor 3: one JSON value a line, one line of answer each.

Appended to a script that defines setup(value) and answer(value). {"setup": value} calls the first, {"answer": value} the
second. The answer is {"value": ...}, or {"error": text} for an exception. Ends when the parent closes its end.
"""


def _serve():
    import json
    import os
    import select
    import signal
    import socket
    import threading

    channel = socket.socket(fileno=3)
    os.set_inheritable(3, False)

    def end_with_parent():
        poll = select.poll()
        poll.register(3, select.POLLRDHUP | select.POLLHUP)
        poll.poll()
        os.killpg(0, signal.SIGKILL)  # with what the user's code has started

    threading.Thread(target=end_with_parent, daemon=True).start()
    calls = {"setup": setup, "answer": answer}
    for line in channel.makefile("r", encoding="utf-8", newline="\n"):
        try:
            (name, value), = json.loads(line).items()
            reply = json.dumps({"value": calls[name](value)}, allow_nan=False)
        except BaseException as error:  # SystemExit too: a user's function must not end the helper
            reply = json.dumps({"error": describe(error)})
        channel.sendall(reply.encode() + b"\n")


_serve()
