"""Two gateways, limiters and admission processes: what one of them decides holds for all, and survives its death."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx2
from openai import AuthenticationError, OpenAI, RateLimitError

from tests.e2e.conftest import client_for
from tests.e2e.test_operations import gauge
from tests.support.mesh import Mesh, eventually

LIMIT = 3000
CALLERS, LONG = 4, 8
LIMITERS = ("ratelimit", "ratelimit-2")
ADMISSIONS = ("admission", "admission-2")


def key_of(mesh: Mesh, tenant: str, plan: str, **limits: int) -> str:
    """A fresh tenant and its key, known to every process when this returns."""
    mesh.weir("set", "tenants", tenant, f"plan={plan}", "--create")
    if limits:
        mesh.weir("set", "limits", f"{tenant}/*", *[f"{name}={n}" for name, n in limits.items()], "--create")
    key: str = mesh.weir_json("keys", "create", tenant, "--scope", "inference")["secret"]
    with client_for(mesh, key) as client:
        eventually(lambda: accepted(client), what="the new key")
    return key


def accepted(client: OpenAI) -> bool:
    try:
        return used(client, 1) > 0
    except AuthenticationError:
        return False


def used(client: OpenAI, max_tokens: int, **extra: bool) -> int:
    """Tokens that one request was billed for; 0 when it was refused for its tokens."""
    try:
        reply = client.completions.create(
            model="weir-fast", prompt="The river", max_tokens=max_tokens, extra_body=extra
        )
    except RateLimitError as error:
        headers = error.response.headers
        if error.code != "quota_tokens" or int(headers["retry-after-ms"]) <= 0 or "tokens" not in headers["ratelimit"]:
            raise
        return 0
    return reply.usage.total_tokens if reply.usage else 0


def test_a_limit_holds_over_gateways_and_a_dead_limiter(replicas: Mesh) -> None:
    """A minute does not pass within this test: all that is delivered must fit the limit, whoever counted it."""
    key = key_of(replicas, "counted", "paid", tokens_per_minute=LIMIT)
    with client_for(replicas, key) as client, ThreadPoolExecutor(8) as threads:
        spent = 3 * used(client, 1)  # the key's own trial, and room for one that was lost on the way
        spent += sum(threads.map(lambda _: used(client, 100), range(8)))
        assert 0 < spent < LIMIT
        for limiter in LIMITERS:  # one of them owns the tenant: whichever it is, it dies with what it counted
            old = replicas.kill(limiter)
            spent += sum(threads.map(lambda _: used(client, 200), range(4)))
            replicas.wait_back(limiter, old)
        refused = 0
        while not refused:
            got = used(client, 200)
            spent += got
            refused += not got
    assert spent <= LIMIT
    assert spent > LIMIT // 2


def test_a_pool_is_served_after_its_admission_died(replicas: Mesh) -> None:
    with client_for(replicas, replicas.env["WEIR_KEY_ACME"]) as client:
        for admission in ADMISSIONS:
            old = replicas.kill(admission)
            assert used(client, 8) > 0
            replicas.wait_back(admission, old)
            assert used(client, 8) > 0


def test_interrupted_work_goes_on_where_it_was(replicas: Mesh) -> None:
    """Flexible requests fill every place; paid ones take some of these, and no flexible one loses or repeats a token:
    the simulated engine's tokens depend on all that came before."""
    key = key_of(replicas, "patient", "free", concurrency=64)
    with (
        client_for(replicas, key) as patient,
        client_for(replicas, replicas.env["WEIR_KEY_ACME"]) as urgent,
        ThreadPoolExecutor(40) as threads,
    ):

        def flexible(number: int) -> str:
            reply = patient.chat.completions.create(
                model="weir-fast",
                messages=[{"role": "user", "content": f"Flow {number}"}],
                max_tokens=400,
                seed=7,
                service_tier="flex",
                extra_body={"ignore_eos": True},
            )
            assert reply.usage is not None
            assert reply.usage.completion_tokens == 400
            return reply.choices[0].message.content or ""

        alone = flexible(0)
        waiting = [threads.submit(flexible, number % 4) for number in range(20)]
        eventually(lambda: running(replicas) >= 16, what="workers full of flexible work")
        quick = [threads.submit(used, urgent, 16) for _ in range(8)]
        assert all(future.result(timeout=60) for future in quick)
        texts = [future.result(timeout=120) for future in waiting]
    assert preemptions(replicas) > 0
    assert all(texts[number] == texts[number % 4] for number in range(20))
    assert texts[0] == alone


def running(mesh: Mesh) -> float:
    workers = [name for name in mesh.file()["services"] if name.startswith("worker")]
    return sum(gauge(mesh, worker, "weir_worker_num_requests_running") for worker in workers)


def preemptions(mesh: Mesh) -> float:
    """Requests that workers interrupted because admission asked them to."""
    asked = re.compile(r'^weir_worker_num_preemptions_total\{cause="admission"\} (\S+)', re.MULTILINE)
    addresses = [row["metrics_address"] for row in mesh.weir_json("workers")["workers"]]
    pages = [httpx2.get(f"http://{address}/metrics", trust_env=False).text for address in addresses]
    return sum(float(count) for page in pages for count in asked.findall(page))


def test_e6_a_rolling_restart_of_the_gateways_refuses_nobody(replicas: Mesh) -> None:
    """One after the other leaves and comes back, under load; nothing is tried twice. Each goes on for a while because
    of long answers, and nobody is told that it leaves before some requests more were served."""
    key = key_of(replicas, "rolling", "paid", requests_per_minute=1_000_000, concurrency=64)
    over = threading.Event()
    served: list[int] = []

    def calls(_: int) -> None:
        with client_for(replicas, key) as client:
            while not over.is_set():
                served.append(used(client, 1))

    with client_for(replicas, key) as client, ThreadPoolExecutor(CALLERS + LONG) as threads:
        callers = [threads.submit(calls, number) for number in range(CALLERS)]
        try:
            for gateway in ("gateway", "gateway-2"):
                long = [threads.submit(used, client, 400, ignore_eos=True) for _ in range(LONG)]
                eventually(lambda: running(replicas) >= LONG, what="long answers under way")
                old = int(replicas.process(gateway)["pid"])
                with paused(int(replicas.process("controlplane")["pid"])):
                    os.kill(old, signal.SIGTERM)  # as the supervisor and a rolling update stop it
                    soon = len(served) + 10 * CALLERS
                    eventually(lambda soon=soon: len(served) >= soon or any_failed(callers), what="more requests")
                replicas.wait_back(gateway, old)
                assert not any_failed(callers)
                assert all(future.result(timeout=60) > 0 for future in long)
        finally:
            over.set()
        for caller in callers:
            caller.result(timeout=60)
    assert all(served)


def any_failed(callers: list[Future[None]]) -> bool:
    """What was refused is raised."""
    return any(caller.result() is None for caller in callers if caller.done())


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    """A process that stands still while the block runs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
