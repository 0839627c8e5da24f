"""The loop that drives a core."""

from services.worker.engines.core import Add, Embed, Embedded, run_core
from tests.support.cores import MODEL, OrderedCore, request


class Script:
    """A link that hands out batches of commands, a batch each time, and then says stop."""

    def __init__(self, *batches):
        self.batches = list(batches)
        self.reports = []

    def receive(self, *, idle):
        assert self.batches or not idle, "the core waits with work before it"
        return self.batches.pop(0) if self.batches else ([] if len(self.reports) < 9 else None)

    def report(self, report):
        self.reports.append(report)


def test_embeddings_take_turns_with_steps():
    order = []

    class Told(OrderedCore):
        def step(self):
            order.append("step")
            return super().step()

        def embed(self, model, prompt):
            order.append(f"embed {prompt[0]}")
            return super().embed(model, prompt)

    link = Script([Add([request(1, 10**6)]), Embed(7, MODEL, [[1], [2, 2], [3]]), Embed(8, MODEL, [])])
    run_core(Told, link)
    assert order[:8] == ["embed 1", "step", "embed 2", "step", "step", "embed 3", "step", "step"]
    answers = [report for report in link.reports if isinstance(report, Embedded)]
    assert [(each.number, len(each.vectors)) for each in answers] == [(7, 3), (8, 0)]
