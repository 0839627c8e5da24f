"""The prediction that `weir up` asks for, and what it tells a person to type."""

from __future__ import annotations

import ast
import textwrap

from services.cli.mesh import predicting, report
from services.cli.mesh.site import ROOT


def test_the_row_is_a_golden_one() -> None:
    asked, expected = predicting.golden(ROOT)
    assert len(asked) == 30
    assert 0 <= expected <= 1


def test_the_lines_of_tritonclient_are_python() -> None:
    lines = report._predicting(predicting.MODEL).splitlines()
    code = textwrap.dedent("\n".join(line for line in lines[1:] if line.strip() and not line.startswith("  (or")))
    assert "tritonclient.grpc.InferenceServerClient" in ast.unparse(ast.parse(code))
