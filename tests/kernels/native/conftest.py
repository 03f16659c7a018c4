"""The C++ kernels on each instruction set that this processor has; without a library these tests are skipped."""

import os
from pathlib import Path

import pytest

from pinrail_kernels.native import Native, NativeError, library_path

THREADS = 2


def _library() -> Path | None:
    """The package's, or another build of it that is to be tested."""
    named = os.environ.get("PINRAIL_TEST_LIBRARY")
    return Path(named) if named else library_path()


def _isas() -> tuple[str, ...]:
    try:
        return Native(1, path=_library()).isas
    except NativeError:
        return ()


@pytest.fixture(scope="session", params=_isas() or [pytest.param("", marks=pytest.mark.skip("no CPU kernels here"))])
def native(request: pytest.FixtureRequest) -> Native:
    return Native(THREADS, request.param, _library())
