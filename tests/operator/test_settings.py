"""Each setting comes from its variable; a wrong one is refused by name."""

from pathlib import Path

import pytest
import yaml

from pinrail_operator.errors import SpecError
from pinrail_operator.settings import Settings

ADDRESS = "want http(s)://HOST[:PORT][/PATH], without a user, a query or a fragment"
CHART = Path(__file__).parents[2] / "charts" / "pinrail"


def test_defaults() -> None:
    settings = Settings.from_env({})
    assert (settings.tick, settings.resync, settings.watched) == (5.0, 300.0, ())
    assert settings.lease_identity


def test_every_setting_is_read() -> None:
    settings = Settings.from_env(
        {"PINRAIL_ENGINE_IMAGE": "e@sha256:0", "PINRAIL_NAMESPACES": "a, b", "PINRAIL_TICK_SECONDS": "1.5",
         "PINRAIL_CONCURRENCY": "3", "PINRAIL_IDENTITY": "me", "PINRAIL_HEALTH_PORT": "0",
         "PINRAIL_PROMETHEUS_URL": "https://[fd00::1]:9090/prefix", "PINRAIL_PROMETHEUS_TOKEN_FILE": "/t"}
    )  # fmt: skip
    assert settings.watched == ("a", "b")
    assert (settings.engine_image, settings.tick, settings.concurrency) == ("e@sha256:0", 1.5, 3)
    assert (settings.lease_identity, settings.health_port) == ("me", 0)
    assert (settings.prometheus_url, settings.prometheus_token_file) == ("https://[fd00::1]:9090/prefix", "/t")


@pytest.mark.parametrize(
    ("address", "told", "namespace"),
    [
        pytest.param("10.96.0.1", None, "leases", id="in a pod that is not told"),
        pytest.param("10.96.0.1", b"sys\n", "sys", id="in a pod"),
        pytest.param("10.96.0.1", b"", "leases", id="in a pod, an empty file"),
        pytest.param("10.96.0.1", b"\xff", "leases", id="in a pod, no text"),
        pytest.param("", b"sys", "", id="elsewhere"),
    ],
)
def test_policies_can_name_the_namespace_of_the_operators_own_pod_whatever_the_leases_is(
    address: str, told: bytes | None, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "namespace"
    if told is not None:
        file.write_bytes(told)
    settings = Settings.from_env({"PINRAIL_LEASE_NAMESPACE": "leases", "KUBERNETES_SERVICE_HOST": address})
    assert settings.own_namespace(file) == namespace


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PINRAIL_TICK_SECONDS", "soon", "PINRAIL_TICK_SECONDS: got 'soon', want a number"),
        ("PINRAIL_TICK_SECONDS", "nan", "PINRAIL_TICK_SECONDS: got 'nan', want 0.1 or above"),
        ("PINRAIL_CONCURRENCY", "0", "PINRAIL_CONCURRENCY: got '0', want 1 or above"),
        ("PINRAIL_PROMETHEUS_URL", "prometheus:9090", f"PINRAIL_PROMETHEUS_URL: got 'prometheus:9090', {ADDRESS}"),
        ("PINRAIL_PROMETHEUS_URL", "http://u:p@h", f"PINRAIL_PROMETHEUS_URL: got 'http://…@h', {ADDRESS}"),
        ("PINRAIL_PROMETHEUS_URL", "http://h?q=1", f"PINRAIL_PROMETHEUS_URL: got 'http://h?q=1', {ADDRESS}"),
    ],
)
def test_a_wrong_setting_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Settings.from_env({name: value})
    assert str(caught.value) == message


def test_the_chart_sets_variables_that_exist() -> None:
    known = {f.metadata["env"] for f in Settings.__dataclass_fields__.values()}
    template = (CHART / "templates" / "deployment.yaml").read_text()
    named = {word.strip("{,") for line in template.splitlines() for word in line.split() if "PINRAIL_" in word}
    assert named <= known
    assert named >= known - {"PINRAIL_IDENTITY", "KUBERNETES_SERVICE_HOST"}


def test_the_charts_defaults_are_the_operators() -> None:
    values, settings = yaml.safe_load((CHART / "values.yaml").read_text()), Settings()
    assert (values["tickSeconds"], values["resyncSeconds"]) == (settings.tick, settings.resync)
    assert values["concurrency"] == settings.concurrency
