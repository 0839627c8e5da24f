"""Structures compile beside the steps."""

import threading

import support_checkpoints as support

from services.worker.engines.port import EngineLoadError, FinishReason, Structure
from services.worker.engines.torch_engine.compiling import Compiling


def finished(compiling):
    """Wait for everything."""
    results = []
    while compiling:
        for _, future in list(compiling._waiting.values()):
            future.exception()
        results += compiling.finished()
    return results


def test_faults_come_back_as_words_for_the_caller():
    def make(request):
        match request.handle:
            case 1:
                return "state"
            case 2:
                raise ValueError("a bracket is missing")
        raise EngineLoadError("/models/secret/tokenizer.json: gone")

    compiling = Compiling(make)
    for handle in (1, 2, 3):
        compiling.start(support.request(handle, [5]))
    found = {request.handle: result for request, result in finished(compiling)}
    assert found == {1: "state", 2: "a bracket is missing", 3: "this model cannot keep to a structure"}
    compiling.close()


def test_others_get_their_tokens_while_a_structure_is_compiled(tiny):
    core = support.make_core({support.MODEL: tiny[0]})
    may_go_on = threading.Event()

    def compiled(request):
        may_go_on.wait()
        raise ValueError("no such keyword")

    core._compiling._make = compiled
    structure = Structure("json_schema", "{}")
    core.add([support.request(1, [5, 6], ignore_eos=True), support.request(2, [7], structure=structure)])
    core.add([support.request(3, [8], structure=structure)])
    assert core.capacity().waiting == 3
    collected = support.Collected()
    while 1 not in collected.finish:
        collected.take(core.step())
    assert len(collected.tokens[1]) == 12
    core.cancel([3])
    collected.take(core.step())
    assert collected.finish == {1: FinishReason.LENGTH, 3: FinishReason.CANCELLED}
    assert core.has_work()
    may_go_on.set()
    while core.has_work():
        collected.take(core.step())
    assert collected.finish[2] == FinishReason.ERROR
    assert collected.errors == {2: "no such keyword"}
    core.close()
