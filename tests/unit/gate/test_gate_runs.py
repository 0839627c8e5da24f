"""bin/test on made-up tests that go wrong in every way: nothing is lost, and what failed is tried once more, alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

CONFTEST = """
import os
from pathlib import Path

from tests.support.gate.scheduling import EnduringScheduling


def pytest_xdist_make_scheduler(config, log):
    return EnduringScheduling(config, log)


def beside_others():
    return "PYTEST_XDIST_WORKER" in os.environ


def first(name):
    marker = Path(__file__).with_name(name)
    seen = marker.exists()
    marker.touch()
    return not seen
"""
TREE = {
    "tests/conftest.py": CONFTEST,
    "tests/unit/test_always.py": """
def test_fails():
    assert 1 == 2, "the reason of the first failure"

def test_passes(): pass
""",
    "tests/unit/test_sometimes.py": """
import pytest
from conftest import beside_others, first

@pytest.fixture(scope="module")
def shared():
    return ["made for the module"]

def test_only_alone(shared):
    assert shared and not beside_others()

def test_second_time(shared):
    assert not first("second_time")

@pytest.mark.parametrize("text", ["a::b[c]", "d/e f", "", "-x", "naïve\\n", "it's", 'say "so"', "$HOME *"])
def test_odd(text):
    assert not beside_others()

class TestIn:
    def test_class(self):
        assert not beside_others()

@pytest.mark.skip(reason="as it is")
def test_skipped(): pass
""",
    "tests/contract/test_fixture.py": """
import pytest
from conftest import beside_others

@pytest.fixture(scope="session")
def broken():
    raise OSError("no such thing")

@pytest.fixture
def shaky():
    yield
    assert not beside_others(), "in the teardown"

def test_needs_it(broken): pass

def test_leaves(shaky): pass
""",
    "tests/contract/test_import.py": "import no_such_module_at_all\n",
    "tests/contract/test_import_once.py": """
from conftest import beside_others
if beside_others():
    raise RuntimeError("not beside others")

def test_collected_late(): pass

def test_collected_late_and_fails():
    assert False
""",
    "tests/security/test_dies.py": """
import os
from conftest import beside_others

def test_before(): pass

def test_dies():
    os._exit(0)

def test_dies_beside_others():
    if beside_others():
        os._exit(1)

def test_after(): pass
""",
    "tests/k8s/test_environment.py": """
import os
from conftest import first

def test_must_run():
    assert os.environ["WEIR_CI"] == "1" and not first("must_run") and "PYTEST_XDIST_WORKER" not in os.environ
""",
    "tests/e2e/test_environment.py": """
import os

def test_may_be_skipped():
    assert "WEIR_CI" not in os.environ
""",
}
SOME = "tests/unit/test_sometimes.py"
ODD = ("a::b[c]", "d/e f", "", "-x", r"na\xefve\n", "it's", 'say "so"', "$HOME *")


@pytest.fixture(scope="module")
def everything(made: Callable):
    """One run over all that goes wrong."""
    checkout = made()
    for name, text in TREE.items():
        checkout.write(name, text)
    return checkout.run("unit", "contract", "security", "e2e", "k8s", "--ci")


def test_what_fails_twice_is_red(everything):
    assert everything.code == 1
    assert set(everything.names("FAILED:")) == {
        "tests/contract/test_import.py",
        "tests/unit/test_always.py::test_fails",
        "tests/contract/test_fixture.py::test_needs_it",
        "tests/security/test_dies.py::test_dies",
        "tests/contract/test_import_once.py::test_collected_late_and_fails",
    }


def test_what_passes_alone_is_unsteady(everything):
    assert set(everything.names("**UNSTEADY**")) == {
        f"{SOME}::test_only_alone",
        f"{SOME}::test_second_time",
        *(f"{SOME}::test_odd[{each}]" for each in ODD),
        f"{SOME}::TestIn::test_class",
        "tests/contract/test_fixture.py::test_leaves",
        "tests/contract/test_import_once.py",
        "tests/security/test_dies.py::test_dies_beside_others",
        "tests/k8s/test_environment.py::test_must_run",
    }
    assert "mend it first of all" in everything.output


def test_the_table_counts_by_group(everything):
    assert everything.row("unit") == [1, 1, 11, 1]
    assert everything.row("contract") == [0, 3, 2, 0]
    assert everything.row("security") == [2, 1, 1, 0]
    assert everything.row("e2e") == [1, 0, 0, 0]
    assert everything.row("k8s") == [0, 0, 1, 0]
    assert everything.last.startswith("RED: 5 failed, 15 unsteady")


def test_the_first_failure_is_told_with_its_reason(everything):
    assert "the reason of the first failure" in everything.output
    assert "crashed while running 'tests/security/test_dies.py::test_dies'" in everything.output


def test_a_test_that_dies_alone_takes_no_other_with_it(everything):
    [broken] = everything.names("BROKEN:")
    assert "pytest got no end: exit code 0" in broken
    assert "tests/security/test_dies.py::test_dies_beside_others" in everything.names("**UNSTEADY**")


def test_nothing_failed(checkout):
    checkout.write("tests/unit/test_fine.py", "def test_fine(): pass\n")
    run = checkout.run("unit")
    assert (run.code, run.last) == (0, "GREEN: 0 failed, 0 unsteady, 0 broken")
    assert run.row("unit") == [1, 0, 0, 0]
    assert "alone, of" not in run.output


def test_only_unsteady_is_loud_and_no_failure(checkout):
    checkout.write("tests/conftest.py", CONFTEST)
    checkout.write("tests/unit/test_once.py", "import conftest\ndef test_once(): assert not conftest.first('once')\n")
    run = checkout.run("unit")
    assert (run.code, run.last) == (0, "UNSTEADY: 0 failed, 1 unsteady, 0 broken")
    assert run.names("**UNSTEADY**") == ["tests/unit/test_once.py::test_once"]


def test_too_many_failures_are_not_run_again(checkout):
    checkout.write(
        "tests/unit/test_many.py",
        "import pytest\n@pytest.mark.parametrize('n', range(41))\ndef test_many(n): assert False\n",
    )
    run = checkout.run("unit", "--", "--tb=no")
    assert run.code == 1
    assert run.row("unit") == [0, 41, 0, 0]
    assert run.names("BROKEN:") == ["41 failed, more than 40: none of them was run again alone"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def pytest_runtest_logreport(report): raise RuntimeError", "internal error"),
        ("def pytest_sessionfinish(session): raise RuntimeError", "pytest got no end: exit code 1"),
        ("raise RuntimeError", "it could not start"),
        ("import os\ndef pytest_sessionfinish(session): os._exit(0)", "pytest got no end"),
        ("import atexit, os\natexit.register(os._exit, 9)", "pytest's process died at its end"),
        (
            "import pytest\ndef pytest_sessionfinish(session): session.exitstatus = pytest.ExitCode.TESTS_FAILED",
            "pytest is red and names no test",
        ),
    ],
    ids=["internal error", "failed end", "conftest", "killed", "dies at its end", "red without a name"],
)
def test_an_end_that_is_none_is_red_and_hides_no_other_run(checkout, text, told):
    checkout.write("tests/compose/conftest.py", text)
    checkout.write("tests/compose/test_fine.py", "def test_fine(): pass\n")
    checkout.write("tests/k8s/test_fine.py", "def test_fine(): pass\n")
    run = checkout.run("compose", "k8s")
    broken = run.names("BROKEN:")[0]
    assert broken.startswith("compose: ")
    assert told in broken
    assert run.row("k8s") == [1, 0, 0, 0]
    assert run.code == 1


def test_deaths_at_the_same_time_lose_no_test(checkout):
    checkout.write("tests/conftest.py", CONFTEST)
    text = (
        "import os, conftest\ndef test_dies():\n    if conftest.beside_others(): os._exit(1)\ndef test_after(): pass\n"
    )
    for number in range(4):
        checkout.write(f"tests/unit/test_{number}.py", text)
    run = checkout.run("unit")
    assert run.row("unit") == [4, 0, 4, 0]
    assert run.last == "UNSTEADY: 0 failed, 4 unsteady, 0 broken"


def test_a_process_that_dies_before_its_tests_is_red(checkout):
    checkout.write("tests/unit/test_fine.py", "def test_fine(): pass\n")
    checkout.write("tests/conftest.py", "import os\nif 'PYTEST_XDIST_WORKER' in os.environ: os._exit(0)\n")
    run = checkout.run("unit", "--", "--max-worker-restart=1")
    assert run.code == 1
    assert "of pytest's processes died between tests" in run.names("BROKEN:")[0]


def test_tests_that_never_ran_are_missed(checkout):
    checkout.write("tests/unit/test_ends.py", "import pytest\ndef test_ends(): pytest.exit('enough', returncode=0)\n")
    checkout.write("tests/unit/test_fine.py", "def test_fine(): pass\n")
    assert "unit: 1 of 2 tests did not run" in checkout.run("unit", "--workers", "0").names("BROKEN:")


def test_a_group_without_tests_is_red(checkout):
    checkout.write("tests/k8s/nothing.py", "")
    assert checkout.run("k8s").names("BROKEN:") == ["k8s: pytest: there was no test to run (exit code 5)"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_everything(checkout, number):
    pipe = checkout.folder / "pids"
    os.mkfifo(pipe)
    checkout.write(
        "tests/unit/test_waits.py",
        f"""
import os, subprocess, sys
from pathlib import Path

def test_waits():
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.signal(2, signal.SIG_IGN); signal.pause()"])
    Path({str(pipe)!r}).write_text(f"{{os.getpid()}} {{child.pid}}")
    child.wait()
""",
    )
    process = checkout.start("unit")
    pids = pipe.read_text().split()
    process.send_signal(number)
    output, _ = process.communicate()
    assert process.returncode == 130
    assert "interrupted" in output
    assert not [pid for pid in pids if alive(pid)]


def alive(pid: str) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_an_unknown_group_is_refused(checkout):
    run = checkout.run("unti")
    assert run.code == 2
    assert "no such group: unti" in run.output
