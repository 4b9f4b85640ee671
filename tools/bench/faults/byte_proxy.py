"""A TCP proxy that cuts connections in the middle of a frame, with a reset on both sides. It sees ciphertext only."""

import asyncio
import random
import threading


class ByteProxy:
    """Listens on a port of its own for each target. Runs an event loop in a thread until close(). cut() may be called
    from other threads; `cuts` counts the connections that were cut."""

    def __init__(self, targets: list[tuple[str, int]], seed: int):
        self._random = random.Random(seed)
        self._armed = 0
        self._connections: set[asyncio.StreamWriter] = set()
        self.cuts = 0
        self.ports: list[int] = []
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(targets,), daemon=True)
        self._thread.start()
        self._started.wait()

    def cut(self) -> None:
        """The next bytes that pass are passed in part, and their connection is reset."""
        self._loop.call_soon_threadsafe(self._arm)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _arm(self) -> None:
        self._armed += 1

    def _run(self, targets: list[tuple[str, int]]) -> None:
        asyncio.set_event_loop(self._loop)
        for target in targets:
            handler = lambda reader, writer, target=target: self._serve(reader, writer, target)
            server = self._loop.run_until_complete(asyncio.start_server(handler, "127.0.0.1", 0))
            self.ports.append(server.sockets[0].getsockname()[1])
        self._started.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        for writer in self._connections:
            writer.transport.abort()
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    async def _serve(self, reader, writer, target) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*target)
        except OSError:
            writer.transport.abort()  # the trainer is away
            return
        self._connections |= {writer, far_writer}
        both = (writer, far_writer)
        await asyncio.gather(self._pump(reader, far_writer, both), self._pump(far_reader, writer, both),
                             return_exceptions=True)
        self._connections -= {writer, far_writer}

    async def _pump(self, reader, writer, both) -> None:
        try:
            while data := await reader.read(1 << 16):
                if self._armed > 0 and len(data) > 1:
                    self._armed -= 1
                    self.cuts += 1
                    writer.write(data[:self._random.randrange(1, len(data))])
                    await asyncio.sleep(0.01)  # so that the part arrives before the reset
                    break
                writer.write(data)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        for side in both:
            side.transport.abort()
