"""The scheduling of tests over processes that die, in any order of events: each test runs once and the run ends."""

from __future__ import annotations

from collections import Counter, deque
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tests.support.gate.scheduling import EnduringScheduling


class Process:
    """A process as the scheduler sees it. It begins a test when it knows the next one or that there is none."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.queue: deque[int] = deque()
        self.shutting_down = False
        self.collected = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue.extend(indices)

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def can_go_on(self) -> bool:
        return not self.collected or len(self.queue) > 1 or self.shutting_down


class Run:
    """What xdist's controller does with a scheduler, event by event (`xdist.dsession.DSession`)."""

    def __init__(self, tests: list[str], processes: int, deadly: set[str], other: set[str]) -> None:
        self.tests = tests
        self.deadly = deadly
        self.other = other
        self.begun: Counter[str] = Counter()
        self.blamed: list[str | None] = []
        options = SimpleNamespace(loadscopereorder=False)
        config = SimpleNamespace(getvalue=lambda _: ["popen"] * processes, option=options)
        self.scheduler = EnduringScheduling(config)
        self.processes: list[Process] = []
        self.started = 0
        for _ in range(processes):
            self.start()

    def start(self) -> None:
        process = Process(f"gw{self.started}")
        self.started += 1
        self.processes.append(process)
        self.scheduler.add_node(process)

    def step(self, process: Process) -> None:
        if not process.collected:
            self.collect(process)
        elif process.queue:
            self.execute(process, process.queue.popleft())
        else:
            self.processes.remove(process)
            if process in self.scheduler.nodes:
                assert self.scheduler.remove_node(process) is None
        if self.scheduler.tests_finished:
            for each in self.scheduler.nodes:
                each.shutdown()

    def collect(self, process: Process) -> None:
        process.collected = True
        if process.shutting_down:
            return
        tests = self.tests[1:] if process.gateway.id in self.other else self.tests
        self.scheduler.add_node_collection(process, tests)
        if self.scheduler.collection_is_completed:
            self.scheduler.schedule()

    def execute(self, process: Process, index: int) -> None:
        test = self.tests[index]
        self.begun[test] += 1
        assert self.begun[test] == 1, f"{test} once more"
        if test in self.deadly:
            self.processes.remove(process)
            self.blamed.append(self.scheduler.remove_node(process))
            self.start()
        else:
            self.scheduler.mark_test_complete(process, index)


@given(data=st.data())
def test_each_test_runs_once_whatever_processes_die(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=6), label="tests by file")
    tests = [f"tests/unit/test_{file}.py::test_{n}" for file, size in enumerate(sizes) for n in range(size)]
    deadly = data.draw(st.sets(st.sampled_from(tests)), label="deadly")
    run = Run(tests, data.draw(st.integers(1, 4), label="processes"), deadly, set())
    while run.processes:
        able = [process for process in run.processes if process.can_go_on]
        assert able, "nobody goes on"
        run.step(data.draw(st.sampled_from(able)))
    assert run.begun == Counter(tests)
    assert Counter(run.blamed) == Counter(deadly)


def test_a_later_process_with_other_tests_ends() -> None:
    tests = [f"tests/unit/test_a.py::test_{n}" for n in range(3)]
    run = Run(tests, 1, {tests[0]}, {"gw1"})
    while run.processes:
        run.step(next(process for process in run.processes if process.can_go_on))
    assert run.begun == Counter(tests[:1])
