"""A server on this machine that is as far away as one on another continent: what it is sent and answers comes late."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def far_away(port: int, seconds: float) -> Iterator[int]:
    """Have a server at another port as well, where everything takes longer.

    Args:
        port: of the server, on this machine.
        seconds: that each byte is under way, in each direction.

    Yields:
        The other port.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def open_() -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers = [writer]
            try:
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    there, to_there = await asyncio.open_connection("127.0.0.1", port)
                    writers.append(to_there)
                    await asyncio.gather(_carry(reader, to_there, seconds), _carry(there, writer, seconds))
            finally:
                for each in writers:
                    each.transport.abort()

        return await asyncio.start_server(serve, "127.0.0.1", 0)

    async def close(server: asyncio.Server) -> None:
        server.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(open_(), loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(close(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Bring what one end says to the other one, late and in its order."""
    loop, under_way = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

    async def deliver() -> None:
        while True:
            when, content = await under_way.get()
            await asyncio.sleep(when - loop.time())
            if not content:
                writer.close()
                return
            writer.write(content)

    delivery = asyncio.create_task(deliver())
    content = b"begun"
    while content:
        try:
            content = await reader.read(1 << 16)
        except ConnectionError:
            content = b""
        under_way.put_nowait((loop.time() + seconds, content))
    with contextlib.suppress(ConnectionError):
        await delivery
