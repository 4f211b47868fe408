"""A port of this machine that leads to whichever model server is in use: what a Service is to a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

HOST = "127.0.0.1"
_NOT_READY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 26\r\nConnection: close\r\n\r\nno model server is ready.\n"
)


def free_port() -> int:
    """A port that nobody listens at just now."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


class Gateway:
    """Passes connections to 127.0.0.1:``port`` on to 127.0.0.1:``target``, in a thread of its own.

    A change of target holds for new connections; those that are open go on to their end.

    Attributes:
        port: where it listens; given as 0, a free one.
        target: where to; None answers 503.
    """

    def __init__(self, port: int):
        """Listen at ``port``.

        Raises:
            OSError: the port cannot be had, most often because somebody listens there.
        """
        self.target: int | None = None
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, port))
            self._socket.listen(128)
        except OSError:
            self._socket.close()
            raise
        self.port = int(self._socket.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="gateway", daemon=True).start()

    def close(self) -> None:
        """Stop listening and drop what is open."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._connected, sock=self._socket))
        self._loop.run_forever()
        server.close()
        self._socket.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.target is None:
                raise ConnectionError
            onward_reader, onward = await asyncio.open_connection(HOST, self.target)
        except OSError:
            writer.write(_NOT_READY)
            writer.close()
            return
        try:
            await asyncio.gather(_pump(reader, onward), _pump(onward_reader, writer))
        finally:
            onward.close()
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on everything, and then the end."""
    with contextlib.suppress(OSError):  # either side may break off
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
