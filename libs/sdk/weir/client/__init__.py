"""The typed Python client of Weir's native API.

    async with Client("xds:///gateway.weir.internal", tls=Tls(ca=…, cert=…, key=…)) as client:
        async with client.generate("weir-fast", "What is a weir?", timeout=30) as stream:
            async for piece in stream:
                print(piece.text, end="", flush=True)
        print(stream.end.usage)
        prediction = await client.predict("cancer-gbdt", {"features": rows}, timeout=0.1)
        print(prediction["probability"], prediction.version)

Over the public edge: `Client("localhost:18443", ca=…, api_key="wk_…")`. Failures raise `WeirError` with a closed reason
and, where coming back helps, `retry_after`. A generation is tried again (with jittered back-off, inside the timeout)
while nothing of it has arrived. One that breaks off later goes on where it was, at another gateway if need be, and
says and costs nothing twice. Leaving the `async with` early cancels it on the worker.
"""

from weir.client._client import Client, RetryPolicy, Tls
from weir.client._predict import Prediction
from weir.client._stream import GenerationStream, Piece
from weir.client._types import Completion, Embeddings, Parameters

from libs.errors import Reason, WeirError

__all__ = [
    "Client",
    "Completion",
    "Embeddings",
    "GenerationStream",
    "Parameters",
    "Piece",
    "Prediction",
    "Reason",
    "RetryPolicy",
    "Tls",
    "WeirError",
]
