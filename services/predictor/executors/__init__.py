"""Running predictions: loaded versions, each behind a batcher, in the lane that suits what it costs.

    executors = Executors(SystemClock(), Settings())
    signature = await executors.load("fraud@3", files, spec)
    ran = await executors.run("fraud@3", inputs, outputs=None, rows=2, tenant="acme", rank=0, deadline=…)

`executors.py`: loading and unloading. `dispatcher.py`: one version's queue and executors. `lanes.py`: which lane.
`work.py`: one execution. `threads.py`: executors in this process. `processes.py`: executors in others, which are
`process.py` from here and `child.py` from inside, with `wire.py` and `shared.py` between them.
"""

from services.predictor.executors.dispatcher import Ran
from services.predictor.executors.executors import Executors, Settings
from services.predictor.executors.work import Barred, Crashed

__all__ = ["Barred", "Crashed", "Executors", "Ran", "Settings"]
