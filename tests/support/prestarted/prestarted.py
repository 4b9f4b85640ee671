"""Processes of a program that was started once: run() is subprocess.run() for commands that end by themselves.

What a program does before main() it does once, in a process that stops there and is forked for each command. For ringside
that is the start of LibTorch, a fifth of a second of computing, which is most of what `ringside check` takes. With
$PRESTARTED, the library of prestarted.c, unset, and under a sanitizer, each command is executed as usual.

A request is one message: numbers of arguments and of variables (32 bits each), then the folder, the arguments and the
variables, each ended by a zero byte, with the three standard streams attached. The answer is the new process's id. The
process becomes a child of the caller, which adopts orphans while it is made. Linux only.
"""

import array
import atexit
import ctypes
import functools
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import tempfile
import threading

_PR_SET_CHILD_SUBREAPER = 36
_lock = threading.Lock()  # held while a process is made


def _adopt_orphans(adopt: bool):
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


class _Server:
    """The process that waits before main() of `program`. Thread safety: any thread."""

    def __init__(self, program: str, preload: str, variables: tuple[tuple[str, str], ...]):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        environment = {**dict(variables), "LD_PRELOAD": preload, "PRESTARTED_SOCKET": str(theirs.fileno())}
        self._process = subprocess.Popen([program], env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        atexit.register(self._end)

    def _end(self):
        self._socket.close()
        self._process.wait()

    def start(self, words: list[str], folder: str, variables: dict[str, str], streams: list[int]) -> int:
        strings = [folder, *words, *(f"{name}={value}" for name, value in variables.items())]
        message = struct.pack("=II", len(words), len(variables)) + b"".join(os.fsencode(text) + b"\0" for text in strings)
        with _lock:
            _adopt_orphans(True)
            try:
                self._socket.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))])
                answer = self._socket.recv(4)
            finally:
                _adopt_orphans(False)
        if len(answer) != 4:
            raise RuntimeError(f"{words[0]} ended before main(): exit status {self._process.wait()}")
        return struct.unpack("=i", answer)[0]


# A server for each program and for what its libraries read before main().
_server = functools.cache(_Server)


def _wait(pid: int, seconds: float | None) -> int | None:
    """The exit status, negative for a signal; None if the process goes on after that time."""
    handle = os.pidfd_open(pid)
    try:
        if not select.select([handle], [], [], seconds)[0]:
            return None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(handle)


def run(words, *, cwd=None, env=None, input=None, timeout=None, check=False, text=False, stdout=None, stderr=None,
        stdin=None, capture_output=False, preload: str = "") -> subprocess.CompletedProcess:
    """As subprocess.run() with these arguments. preload: a library that is loaded before the others."""
    library, words = os.environ.get("PRESTARTED", ""), [str(word) for word in words]
    variables = dict(os.environ if env is None else env)
    if capture_output:
        stdout = stderr = subprocess.PIPE
    if not library:
        if preload:
            variables["LD_PRELOAD"] = preload
        given = {"input": input} if stdin is None else {"stdin": stdin}
        return subprocess.run(words, cwd=cwd, env=variables, timeout=timeout, check=check, text=text, stdout=stdout,
                              stderr=stderr, **given)
    before_main = {name: value for name, value in variables.items()
                   if name.startswith(("OMP_", "MKL_", "TORCH_", "MALLOC_", "GLIBC_", "LD_"))}
    server = _server(str(pathlib.Path(words[0]).resolve()), f"{preload}:{library}".lstrip(":"), tuple(sorted(before_main.items())))
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        given.write(input.encode() if isinstance(input, str) else input or b"")
        given.seek(0)
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            def file_of(wanted, pipe, own):
                return {None: own, subprocess.PIPE: pipe, subprocess.DEVNULL: nothing}[wanted]
            first = nothing if stdin == subprocess.DEVNULL else 0 if input is None else given.fileno()
            second = file_of(stdout, out.fileno(), 1)
            third = second if stderr == subprocess.STDOUT else file_of(stderr, errors.fileno(), 2)
            pid = server.start(words, os.path.abspath(cwd or "."), variables, [first, second, third])
        finally:
            os.close(nothing)
        status = _wait(pid, timeout)
        if status is None:
            os.kill(pid, signal.SIGKILL)
            _wait(pid, None)
        found = []
        for wanted, file in ((stdout, out), (stderr, errors)):
            file.seek(0)
            data = file.read() if wanted == subprocess.PIPE else None
            found.append(data.decode() if text and data is not None else data)
    if status is None:
        raise subprocess.TimeoutExpired(words, timeout, *found)
    done = subprocess.CompletedProcess(words, status, *found)
    if check:
        done.check_returncode()
    return done
