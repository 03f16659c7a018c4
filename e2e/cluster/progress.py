"""Progress lines with times, and the one error that is shown without a traceback."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STARTED = time.monotonic()


class ClusterError(Exception):
    """What went wrong and what to do about it, in words for the person at the terminal."""


def say(text: str) -> None:
    """Print one line, headed by the seconds since this program started."""
    print(f"[{time.monotonic() - _STARTED:6.1f} s] {text}", flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Say what begins, and how long it took."""
    say(f"{text} ...")
    started = time.monotonic()
    yield
    say(f"{text}: {time.monotonic() - started:.1f} s")


def wait_until(is_true: Callable[[], bool], what: str, *, timeout: float, interval: float = 0.1) -> None:
    """Poll until true.

    Args:
        is_true: The question; it may be asked many times.
        what: What is waited for, for the message.
        timeout: Seconds.
        interval: Seconds between two tries.

    Raises:
        ClusterError: It did not come true in time.
    """
    deadline = time.monotonic() + timeout
    while not is_true():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} did not happen within {timeout:.0f} s")
        time.sleep(interval)


def run_main(main: Callable[[], int]) -> None:
    """Exit with the result of `main`; a ClusterError is printed as one line."""
    try:
        sys.exit(main())
    except ClusterError as e:
        sys.exit(f"error: {e}")
