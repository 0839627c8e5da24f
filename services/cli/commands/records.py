"""`weir records`."""

from __future__ import annotations

from typing import Annotated

from libs.resources.forms import plain
from services.cli import calls
from services.cli.app import Json, Option, say
from services.cli.output import failed, print_json


def rebuild(
    wait: Annotated[int, Option(least=0, most=600, help="Seconds to wait until it is done.")] = 300,
    as_json: Json = False,
) -> None:
    """Drop the records of requests and the sums, and make them anew out of the audit log.

    For an owner: after a restore, or when `weir usage reconcile` says that sums differ. What the log has truncated
    stays as it is: nothing else knows it. Nobody who serves requests notices. Exit code 1 when it is not done in time;
    it goes on.
    """
    with calls.service("records") as records:
        answer = records("Rebuild", timeout=wait + calls.TIMEOUT, patience={"seconds": wait})
    done = answer.sequence >= answer.upto
    if as_json:
        print_json(plain(answer, unset=True))
    elif done:
        say(f"records {answer.first} to {answer.upto} of the audit log are projected anew")
    if not done:
        raise failed(f"{answer.sequence} of {answer.upto} records are projected; it goes on")


COMMANDS = {"rebuild": rebuild}
