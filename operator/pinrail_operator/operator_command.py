"""`pinrail operator`: watch the cluster and reconcile, until it is told to stop."""

import argparse

from pinrail_contract.command import Command


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="pinrail operator",
        description="Reconcile InferenceServices of the cluster that this runs in, or that KUBECONFIG names. "
        "Settings are environment variables: see pinrail_operator/settings.py.",
    )
    parser.parse_args(argv)
    from .run import run
    from .settings import Settings

    return run(Settings.from_env())


command = Command("reconcile InferenceServices in a Kubernetes cluster", _run)
