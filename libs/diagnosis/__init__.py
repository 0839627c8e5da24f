"""Which stage of the mesh binds, for whom, since when, and what to do: from two scrapes of its metrics. Pure."""

from libs.diagnosis.diagnosis import Diagnosis, diagnose, follow
from libs.diagnosis.findings import Cost, Evidence, Finding, Remedy, Stage, remembered
from libs.diagnosis.pages import Page, Sample, parse
from libs.diagnosis.window import Process, Scrape, Span, Window

__all__ = [
    "Cost",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Page",
    "Process",
    "Remedy",
    "Sample",
    "Scrape",
    "Span",
    "Stage",
    "Window",
    "diagnose",
    "follow",
    "parse",
    "remembered",
]
