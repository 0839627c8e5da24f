"""The mesh's decisions over modelled workers, clients and delays: what `weir simulate` runs. Never a measurement.

workload (who asks for what, and when) → engine (events in order of time) over the real limiter and the real admission
policy, with `worker` in place of an accelerator → report. See README.md for what is real, what is modelled and how far
off it is.
"""
