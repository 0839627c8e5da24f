"""A mesh with little KV memory: prefixes are found again, sequences are preempted and go on, operators see both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI

from tests.support.mesh import STREAMS_ONLY, Mesh, eventually

REQUESTS, TOKENS = 16, 250
STORY = "Tell me a long story about rivers, lakes and the sea. "


@pytest.fixture(scope="module")
def small_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Workers that hold four such requests at once, and twice as much in host memory."""
    settings = (*STREAMS_ONLY, "worker.torch.total_blocks=80", "worker.torch.host_bytes=16777216")
    with Mesh(tmp_path_factory.mktemp("small-memory"), settings=settings) as mesh:
        yield mesh


async def ask_all(client: AsyncOpenAI) -> list[str]:
    """The answers to many requests at once, each with a seed of its own."""

    async def ask(number: int) -> str:
        answer = await client.chat.completions.create(
            model="weir-fast",
            messages=[{"role": "user", "content": f"{number} {STORY * 6}"}],
            max_tokens=TOKENS,
            temperature=0.9,
            seed=number,
            service_tier="flex",  # nobody waits for the first token: all of them may wait for memory
            extra_body={"ignore_eos": True},
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == TOKENS
        return answer.choices[0].message.content or ""

    return list(await asyncio.gather(*(ask(number) for number in range(REQUESTS))))


async def test_preempted_requests_say_the_same_and_operators_see_them(small_mesh: Mesh) -> None:
    environ = small_mesh.env
    async with AsyncOpenAI(
        base_url=environ["WEIR_EDGE_URL"] + "/v1", api_key=environ["WEIR_KEY_ACME"], timeout=60, max_retries=0
    ) as client:
        first = await ask_all(client)
        second = await ask_all(client)
    assert first == second

    def total(field: str) -> int:
        return sum(worker["load"][field] for worker in small_mesh.weir_json("workers")["workers"])

    assert eventually(lambda: total("preemptions_total"), what="preemptions") > 0
    assert total("prefix_hit_total") > 0
    eventually(lambda: total("free_blocks") == 160 and total("running") == 0, what="every block free")
