"""Fixtures of the torch engine's tests."""

import sys
from pathlib import Path

import pytest

# Tests import the helper module beside them; pytest's importlib mode puts no test folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

import support_checkpoints as support


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """(folder, transformers model) of a tiny random Llama checkpoint."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("tiny")
    return folder, support.save_checkpoint(folder)
