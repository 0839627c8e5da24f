"""What goes on to another backend is what came, and where to must make sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.traces import Span
from services.collector.convert import exported, spans
from services.collector.forward import Backend, Forwarder

VALUES = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.sampled_from([0.25, -1.5]), st.sampled_from(["fast@1", "stop"])
)
KEYS = st.sampled_from(["weir.tenant", "gen_ai.request.model", "weir.rows", "gen_ai.response.finish_reasons"])


def linked(ids: str) -> str:
    return f"{ids[:32]}-{ids[32:]}"


@given(
    st.lists(
        st.builds(
            Span,
            trace_id=st.integers(1, 2**128 - 1).map("{:032x}".format),
            span_id=st.integers(1, 2**64 - 1).map("{:016x}".format),
            parent_id=st.one_of(st.just(""), st.integers(1, 2**64 - 1).map("{:016x}".format)),
            name=st.sampled_from(["chat weir-fast", "decode"]),
            kind=st.sampled_from(["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]),
            service=st.sampled_from(["gateway", "worker"]),
            instance=st.sampled_from(["", "gateway-0"]),
            zone=st.sampled_from(["", "zone-a"]),
            start_ns=st.integers(0, 2**62),
            end_ns=st.integers(0, 2**62),
            error=st.sampled_from(["", "WORKER_LOST"]),
            links=st.lists(st.integers(2**64, 2**192 - 1).map("{:048x}".format).map(linked), max_size=3),
            attributes=st.dictionaries(KEYS, VALUES | st.lists(st.sampled_from(["stop", "length"]), max_size=3)),
        ),
        max_size=6,
    )
)
def test_there_and_back_is_the_same(kept: list[Span]) -> None:
    back = [each for each in spans(exported(kept), max_value_chars=1_000) if each is not None]
    assert sorted(back, key=repr) == sorted(kept, key=repr)


@pytest.mark.parametrize(
    "url", ["tempo:4317", "https://tempo", "ftp://tempo:4317", "https://tempo:4317/v1/traces", "https://"]
)
def test_an_address_that_is_none_is_refused_by_the_settings_name(url: str) -> None:
    with pytest.raises(ValueError, match="forward must be"):
        Backend(url=url, header_files={})


def test_a_tokens_file_is_read_when_it_is_used(tmp_path: Path) -> None:
    file = tmp_path / "token"
    backend = Backend(url="https://tempo:4317", header_files={"Authorization": str(file)})
    for token in ("Bearer one", "Bearer two"):
        file.write_text(f"{token}\n")
        assert backend.metadata() == [("authorization", token)]


async def test_what_waits_is_bounded_and_the_oldest_go_first() -> None:
    forwarder = Forwarder(Backend(url="http://127.0.0.1:9", header_files={}), most=3)
    sent: list[Any] = [
        Span(trace_id=f"{n:032x}", span_id=f"{n:016x}", name="n", start_ns=0, end_ns=0) for n in range(1, 6)
    ]
    forwarder.put(sent)
    assert forwarder.waiting == 3
    assert list(forwarder._waiting) == sent[2:]
