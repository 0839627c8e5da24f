"""How hard the safety filter is to walk around, what it costs, and what one tenant's long texts do to another's.

    python -m loadtest.bench_safety [--quick]

1. Every evasion of `loadtest.evasions`, with both shipped packs, as input and as output, cut at every position: how
   many are caught, and whether a cut ever changes the result.
2. What the packs find in this repository's texts and code and in plain text of twelve languages: nothing is there but
   what this file and others write to be found, which is left out.
3. Microseconds of CPU per character of whole inputs and outputs, and per piece of an output in pieces of a token.
4. A safety service as a process and a multiplexed stream to it: a victim's output filters get a piece each 5 ms, with
   and without another tenant's inputs of 1 MiB, 20 a second. Texts beyond the limit are refused by their length, by the
   victim's own gateway before they are sent: so these come on another stream, from a process that does not ask. Texts
   just within the limit, of the dearest ASCII, come on the victim's stream.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import uvloop
from weir.mux.v1 import mux_pb2
from weir.safety.v1 import safety_pb2, safety_pb2_grpc

from libs.clock import SystemClock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux import Codec, MuxClient, Semantics
from libs.rpc import make_channel
from libs.safety_filter import Pack, compile_pack, rules_from_json
from loadtest.evasions import SPECIMENS, Evasion, corpus
from loadtest.figures import needed, percentile
from loadtest.helper import helper
from loadtest.overload import output
from services.safety.config import Settings

PACKS = Path("services/safety/packs")
TARGETS = {
    "evasions_caught_pct": "≥ 99",
    "false_alarms_per_million_chars": "= 0",
    "us_per_char_ascii": "≤ 0.15",
    "us_per_char_worst": "≤ 1.0",
    "victim_added_ms_p99": "≤ 5",
}
PROSE = (
    "Once upon a time there was a small river that sang from morning to night, and the people of the valley liked to "
    "sit beside it. In spring, when the snow had melted, it told them of the hills; in summer it was quiet. "
) * 20
LANGUAGES = (
    "Все люди рождаются свободными и равными в своём достоинстве и правах. Они наделены разумом и совестью и должны "
    "поступать в отношении друг друга в духе братства. ",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Έχουν λογική. ",
    "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. ",
    "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. ",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. ",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। ",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi. ",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren; sie sind mit Vernunft und Gewissen begabt. ",
    "Tüm insanlar özgür, onur ve haklar bakımından eşit doğarlar. ",
)
_SOURCES = ("README.md", "docs/*.md", "services/**/*.md", "services/**/*.py", "libs/**/*.py", "simulation/*.py")
_MEANT = re.compile(r"FORBIDDEN|example\.(?:com|org)|@|BEGIN [A-Z ]*PRIVATE|\+\d", re.IGNORECASE)
"""Lines that are written to be found, or that hold an address."""
SIZE = 20_000
MEBIBYTE = 1 << 20
_TAKEN = "taken"


def packs() -> dict[str, Pack]:
    """The shipped packs."""
    return {path.stem: compile_pack(path.stem, 1, rules_from_json(path.read_text())) for path in PACKS.glob("*.json")}


def caught(pack: Pack, evasion: Evasion, *, every: int) -> Iterator[bool]:
    """Whether the input and, where outputs have such a rule, the output are caught however they are cut."""
    text = f"so {evasion.text}."
    wanted = (evasion.category, "evasion.ignored_characters")
    yield any(finding.category in wanted for finding in pack.check_input([text]).findings)
    if evasion.category == "prompt_injection":
        return
    whole = pack.check_output(text)
    yield any(finding.category in wanted for finding in whole.findings) and all(
        pieces(pack, [text[:at], text[at:]]) == whole.texts[0] for at in range(1, len(text), every)
    )


def pieces(pack: Pack, deltas: Sequence[str]) -> str:
    """What comes of an output in these pieces."""
    stream = pack.open_output()
    return "".join([*map(stream.feed, deltas), stream.finish()])


def false_alarms(pack: Pack, *, every: int) -> tuple[int, int]:
    """(findings, characters) in every so manyth text of those that hold nothing to find."""
    lines = [
        line
        for pattern in _SOURCES
        for path in sorted(Path().glob(pattern))
        for line in path.read_text(encoding="utf-8").splitlines()
        if not _MEANT.search(line)
    ]
    texts = ["\n".join(lines[at : at + 200]) for at in range(0, len(lines), 200)] + [text * 50 for text in LANGUAGES]
    texts = texts[::every]
    found = 0
    for text in texts:
        for finding in (*pack.check_input([text]).findings, *pack.check_output(text).findings):
            output.say(f"  false alarm: {finding}")
            found += 1
    return found, 2 * sum(map(len, texts))


def hard_texts() -> dict[str, str]:
    """Texts that cost much of a filter that knows characters one by one."""
    rng = random.Random(7)

    def chars(first: int, last: int, size: int = SIZE) -> str:
        return "".join(chr(rng.randint(first, last)) for _ in range(size))

    return {
        "cjk": chars(0x4E00, 0x9FFF),
        "hangul": chars(0xAC00, 0xD7A3),
        "marks": "".join("a" + chars(0x300, 0x36F, rng.randint(1, 30)) for _ in range(SIZE // 16)),
        "zero_width": "".join("a" + "\u200b" * rng.randint(1, 60) for _ in range(SIZE // 30)),
        "mixed": chars(0x80, 0xD7FF),
        "expanding": "\ufdfa" * SIZE,
    }


def hostile_texts() -> dict[str, str]:
    """ASCII that begins matches again and again and never ends one."""
    return {"keys": "wk_." * (SIZE // 4), "digits": "1 " * (SIZE // 2), "ibans": "AB12 CD34 " * (SIZE // 10)}


def us_per_char(pack: Pack, text: str, repeats: int) -> float:
    """The dearer of input and output, each the least of the repeats: the nearest to a machine without other work."""
    ways: tuple[Callable[[], object], ...] = (lambda: pack.check_input([text]), lambda: pack.check_output(text))
    return max(_least(way, repeats) for way in ways) * 1e6 / len(text)


def us_per_piece(pack: Pack, text: str, repeats: int) -> float:
    """The same for one piece of four characters."""
    deltas = [text[at : at + 4] for at in range(0, len(text), 4)]
    return _least(lambda: pieces(pack, deltas), repeats) * 1e6 / len(deltas)


def _least(run: Callable[[], object], repeats: int) -> float:
    run()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


@contextlib.asynccontextmanager
async def service() -> AsyncIterator[int]:
    """The port of a safety service that runs as a process of its own."""
    async with helper("-m", "loadtest.safety_service", stdout=asyncio.subprocess.PIPE) as process:
        if process.stdout is None:
            raise RuntimeError("the service has no output")
        yield int(await process.stdout.readline())


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[MuxClient]:
    """A stream to the service."""
    async with make_channel(f"127.0.0.1:{port}", tls=None, translate_errors=False) as channel:
        stub = safety_pb2_grpc.SafetyServiceStub(channel)
        client = MuxClient(
            open_stream=lambda: stub.Session(wait_for_ready=True),
            codec=Codec.of(safety_pb2.SessionRequest, safety_pb2.SessionResponse),
            hello=mux_pb2.Hello(service="gateway", instance="bench"),
            clock=SystemClock(),
            rng=random.Random(1),
        )
        running = asyncio.create_task(client.run())
        try:
            await client.wait_connected(20)
            yield client
        finally:
            running.cancel()
            await asyncio.wait((running,))


@contextlib.asynccontextmanager
async def elsewhere(port: int) -> AsyncIterator[None]:
    """A process that floods the service with a mebibyte of what costs most beyond ASCII; it does so already."""
    words = ("-m", "loadtest.bench_safety", "--flood", str(port))
    async with helper(*words, stdout=asyncio.subprocess.PIPE) as process:
        if process.stdout is None or not await process.stdout.readline():
            raise RuntimeError("the flood did not begin")
        yield


async def flood_from_here(port: int) -> None:
    """Be that process, which says so as soon as a text came to the service."""
    text, said = hard_texts()["expanding"], False

    def told(fate: str) -> None:
        nonlocal said
        if fate == Reason.PAYLOAD_TOO_LARGE.name and not said:
            output.say(fate)
            said = True

    async with connected(port) as client:
        await flood(client, text * (MEBIBYTE // len(text.encode()) + 1), told)


@contextlib.asynccontextmanager
async def beside(client: MuxClient) -> AsyncIterator[None]:
    """A flood on the victim's own stream, of the dearest texts that are within the limit."""
    text, fates = hostile_texts()["keys"], Counter[str]()
    text *= Settings(service="safety", instance="").max_input_chars // len(text)
    flooding = asyncio.create_task(flood(client, text, lambda fate: fates.update((fate,))))
    try:
        yield
    finally:
        flooding.cancel()
        await asyncio.wait((flooding,))
    # One whose time was over was taken, too: it is so dear.
    needed(fates[_TAKEN] + fates[Reason.DEADLINE_EXCEEDED.name], f"text of the flood was taken: {dict(fates)}")


async def victim(client: MuxClient, seconds: float, first: int) -> list[float]:
    """Seconds of each round trip of a small output's pieces, one piece each 5 ms."""
    opened = [safety_pb2.OpenFilter(filter=first, tenant="victim", request_id="bench")]
    took: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        due = time.monotonic() + 0.005
        feed = safety_pb2.FilterOutput(open=opened, filters=[first], deltas=[" word"])
        began = time.perf_counter()
        await _call(client, safety_pb2.SafetyCall(filter_output=feed))
        took.append(time.perf_counter() - began)
        opened = []
        await asyncio.sleep(max(0.0, due - time.monotonic()))
    return took


async def flood(client: MuxClient, text: str, told: Callable[[str], None]) -> None:
    """Send inputs of another tenant, 20 a second, whatever becomes of them, which is told."""
    call = safety_pb2.SafetyCall(check_input=safety_pb2.CheckInput(tenant="hog", texts=[text], request_id="bench"))
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(_refusable(client, call, told))
            await asyncio.sleep(0.05)


async def _refusable(client: MuxClient, call: safety_pb2.SafetyCall, told: Callable[[str], None]) -> None:
    try:
        await _call(client, call, seconds=2)
    except WeirError as error:
        told(error.reason.name)
    else:
        told(_TAKEN)


async def _call(client: MuxClient, call: safety_pb2.SafetyCall, seconds: float = 10) -> None:
    await client.call(call, deadline=Deadline.after(seconds, SystemClock()), semantics=Semantics.ONCE)


async def added(seconds: float) -> dict[str, float]:
    """Milliseconds that the floods add to the victim's p99."""
    figures = {}
    async with service() as port, connected(port) as client:
        await victim(client, seconds / 4, 1)
        for number, (name, flooded) in enumerate((("", elsewhere(port)), ("_within_limit", beside(client)))):
            quiet = percentile(await victim(client, seconds, 3 * number + 2), 0.99)
            async with flooded:
                await victim(client, 2.0, 3 * number + 3)  # until the flood has begun
                loud = percentile(await victim(client, seconds, 3 * number + 4), 0.99)
            figures[f"victim_added_ms_p99{name}"] = (loud - quiet) * 1e3
            figures[f"victim_ms_p99{name}"] = quiet * 1e3
    return figures


def caught_pct(shipped: Mapping[str, Pack], *, quick: bool) -> dict[str, float]:
    """Of all evasions, by all packs."""
    results = []
    for name, pack in shipped.items():
        for evasion in list(corpus())[:: 9 if quick else 1]:
            found = list(caught(pack, evasion, every=7 if quick else 1))
            results += found
            if not all(found):
                output.say(f"  missed by {name}: {evasion.category}, {evasion.way}")
    caught_all = 100 * sum(results) / len(results)
    return {"evasions_caught_pct": caught_all, "evasions": len(results), "specimens": len(SPECIMENS)}


def alarms(shipped: Mapping[str, Pack], *, quick: bool) -> dict[str, float]:
    """Where nothing is to be found."""
    counted = [false_alarms(pack, every=9 if quick else 1) for pack in shipped.values()]
    size = sum(size for _, size in counted)
    return {
        "false_alarms_per_million_chars": sum(found for found, _ in counted) / size * 1e6,
        "chars_without_alarm": size,
    }


def costs(shipped: Mapping[str, Pack], *, quick: bool) -> dict[str, float]:
    """CPU by kind of text."""
    repeats, default = 2 if quick else 7, shipped["default"]
    hard = {
        name: max(us_per_char(pack, text, repeats) for pack in shipped.values()) for name, text in hard_texts().items()
    }
    return {
        "us_per_char_ascii": us_per_char(default, PROSE, repeats),
        "us_per_char_worst": max(hard.values()),
        **{f"us_per_char_{name}": value for name, value in hard.items()},
        "us_per_piece": us_per_piece(default, PROSE, repeats),
        "us_per_char_hostile_ascii": max(us_per_char(default, text, 1) for text in hostile_texts().values()),
    }


def main(*, quick: bool) -> None:
    """Measure; print what stands out and one line of JSON."""
    output.begin()
    shipped, parts = packs(), output.Parts()
    for part, measured in (("evasions", caught_pct), ("alarms", alarms), ("costs", costs)):
        with parts.part(part):
            parts.figures |= measured(shipped, quick=quick)
    with parts.part("floods"):
        parts.figures |= uvloop.run(added(1.0 if quick else 10.0))
    output.finish("safety", parts, TARGETS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small samples: figures of little weight")
    parser.add_argument("--flood", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flood:
        uvloop.run(flood_from_here(options.flood))
    else:
        main(quick=options.quick)
