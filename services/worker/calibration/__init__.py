"""Fits the simulated engine's costs to a real engine: `weir calibrate` runs `python -m services.worker.calibration`.

workloads (what to run) → measure (run it, note each step's work and time) → fit (least squares) → compare (a workload
that the fit has not seen, on both engines) → report (the file and the words).
"""
