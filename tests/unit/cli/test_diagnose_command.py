"""`weir diagnose` on the metrics pages of a mesh's processes, over HTTP as they show them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import MemoryStore, Put, keys
from tests.support.operator import Operator

FLOOD = """weir_admission_queue_depth{pool="demo",queue_class="paid"} 40
weir_admission_queue_wait_seconds_count{pool="demo",queue_class="paid"} COUNT
weir_admission_queue_wait_seconds_sum{pool="demo",queue_class="paid"} COUNT
weir_admission_tenant_requests{pool="demo",tenant="flooder",state="queued"} 40
weir_admission_tenant_requests{pool="demo",tenant="flooder",state="held"} 4
weir_admission_tenant_requests{pool="demo",tenant="victim",state="held"} 4
weir_admission_worker_free_sequences{pool="demo",worker="worker-a"} 0
"""
WORKER = """weir_worker_model_state{model="weir-fast@1",state="ready"} 1
weir_worker_prompt_tokens_total COUNT000
weir_worker_generation_tokens_total COUNT000
"""
QUIET = FLOOD.replace("40", "0")
Start = Callable[[dict[str, str]], None]


@pytest.fixture
def mesh(weir: Operator) -> Iterator[Start]:
    """Describes a mesh of these processes, whose pages count their scrapes. One without a text does not answer."""
    texts: dict[str, str] = {}
    asked: dict[str, int] = {}

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/")
            text = texts[name].replace("COUNT", str(asked.get(name, 0)))
            asked[name] = asked.get(name, 0) + 1
            self.send_response(200 if text else 503)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    def start(given: dict[str, str]) -> None:
        texts.update(given)
        for name in given:
            place = {"address": "127.0.0.1:9", "metrics": f"127.0.0.1:{server.server_port}/{name}", "zone": "zone-a"}
            weir.services[name] = {"service": name.split("-")[0], **place}
        weir.describe()

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield start
        server.shutdown()
        serving.join()


async def test_what_binds_is_told_with_whom_why_and_what_it_costs_to_mend(
    weir: Operator, store: MemoryStore, mesh: Start
) -> None:
    price = pb.Price(model="*", input_microusd_per_million=1_000_000, output_microusd_per_million=2_000_000)
    await store.txn(puts=[Put(keys.key_of(price), keys.encode(price))])
    mesh({"admission-1": FLOOD, "worker-a": WORKER})
    answer = await weir("diagnose", "--seconds", 1)
    assert answer.code == 1, answer.err
    said = answer.out.splitlines()
    assert said[0].startswith("what binds: one tenant (tenant flooder, pool demo), at least since ")
    assert "  requests waiting: 40   (felt beyond 0)" in said
    assert "  mean wait: 1 s   (felt beyond 0.25)" in said
    remedies = [line.split("  ") for line in said if line.startswith("    ")]
    assert "nothing" in remedies[0][2]
    assert "weir tenants explain flooder" in remedies[0][-1]
    # A thousand tokens of either kind in the second: three dollars per million, for an hour of 3.6 million.
    hour = float(remedies[-1][2].removeprefix("$").removesuffix(" an hour"))
    assert hour == pytest.approx(10.80, rel=0.3)


async def test_who_does_not_answer_is_told_first_and_the_rest_after_it(weir: Operator, mesh: Start) -> None:
    mesh({"admission-1": FLOOD, "worker-a": WORKER, "safety-1": ""})
    answer = await weir("diagnose", "--seconds", 1, "--json")
    assert answer.code == 1
    silent, tenant = json.loads(answer.out)["findings"]
    assert (silent["stage"], silent["whom"]) == ("silent", {"process": "safety-1", "zone": "zone-a"})
    assert tenant["whom"]["tenant"] == "flooder"
    assert tenant["remedies"][-1]["cost"] == "accelerator"


async def test_of_a_mesh_without_trouble_nothing_is_told(weir: Operator, mesh: Start) -> None:
    mesh({"admission-1": QUIET, "worker-a": WORKER})
    answer = await weir("diagnose", "--seconds", 1)
    assert (answer.code, answer.out) == (0, "nothing binds: 2 processes, over 1 s\n")


async def test_it_needs_no_registry(weir: Operator, mesh: Start) -> None:
    weir.services.clear()
    mesh({"admission-1": FLOOD})
    answer = await weir("diagnose", "--seconds", 1)
    assert answer.code == 1
    assert "what a worker costs is not known" in answer.err
    assert any("a worker" in line for line in answer.out.splitlines())


async def test_scrapes_are_kept_and_diagnosed_elsewhere(weir: Operator, mesh: Start, tmp_path: Path) -> None:
    mesh({"admission-1": FLOOD, "safety-1": ""})
    folder = tmp_path / "kept"
    live = await weir("diagnose", "--seconds", 1, "--save", folder, "--json")
    again = await weir("diagnose", "--from", folder, "--json")
    assert again.code == live.code == 1
    silent, tenant = json.loads(live.out)["findings"]
    assert json.loads(again.out)["findings"] == [silent, tenant]


async def test_a_folder_without_two_scrapes_is_refused(weir: Operator, tmp_path: Path) -> None:
    empty = await weir("diagnose", "--from", tmp_path)
    assert (empty.code, "two scrapes" in empty.err) == (1, True)
    (tmp_path / "1.scrape.json").write_text('{"at": 1}')
    broken = await weir("diagnose", "--from", tmp_path)
    assert broken.code == 1
    assert "1.scrape.json is no scrape" in broken.err


async def test_a_mesh_of_which_nobody_answers_has_no_diagnosis(weir: Operator, mesh: Start) -> None:
    mesh({"admission-1": "", "worker-a": ""})
    answer = await weir("diagnose", "--seconds", 1)
    assert (answer.code, "weir status" in answer.err) == (1, True)
