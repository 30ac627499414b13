"""A proxy that makes each request wait, and costs little itself.

`python -m benchmarks.slow_proxy PORT UPSTREAM_PORT DELAY_S`. It knows nothing of HTTP: what comes
from a client in one go is a request, as long as requests are small.
"""

from __future__ import annotations

import asyncio
import sys

_CHUNK_BYTES = 1 << 18


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, delay_s: float
) -> None:
    try:
        while data := await reader.read(_CHUNK_BYTES):
            if delay_s:
                await asyncio.sleep(delay_s)
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def _serve(*, port: int, upstream: int, delay_s: float) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", upstream)
        await asyncio.gather(
            _forward(reader, requests, delay_s=delay_s), _forward(answers, writer, delay_s=0.0)
        )

    server = await asyncio.start_server(connect, "127.0.0.1", port, limit=_CHUNK_BYTES, backlog=512)
    await server.serve_forever()


def main() -> None:
    port, upstream, delay_s = sys.argv[1:]
    asyncio.run(_serve(port=int(port), upstream=int(upstream), delay_s=float(delay_s)))


if __name__ == "__main__":
    main()
