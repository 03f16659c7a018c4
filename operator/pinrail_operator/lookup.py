"""What people's commands read of a cluster, with the rights of their own kubeconfig. I/O.

It cannot write: its `Api` is never the leader, and sends nothing but GET.
"""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import urllib3
from kubernetes import client, config

from pinrail_contract import endpoints
from pinrail_contract.errors import SampleError
from pinrail_contract.metrics import digest_of, read, runtime_of, version_runtime
from pinrail_contract.runtime import UNSAID, Runtime

from . import pods
from .api import CONCURRENCY, Api
from .cluster import Cluster
from .errors import OperatorError, Refused, SpecError, Unavailable
from .explain import Facts, Report
from .observed import Pod
from .settings import Settings
from .types import InferenceService, ServiceKey
from .verifier import running_verifier

Body = Mapping[str, Any]

GROUP = "/apis/pinrail.dev/v1alpha1"
OPERATOR = "app.kubernetes.io/name=pinrail-operator"
_PAGE_TIMEOUT = (2.0, 3.0)  # seconds to connect, and between two bytes: a pod may hang
_UNHEARD = (client.ApiException, urllib3.exceptions.HTTPError, OSError)
_SPEC = "dev.pinrail.v1alpha1."


@dataclass(frozen=True, slots=True)
class Lookup:
    api: Api
    namespace: str  # of names that come without one

    @classmethod
    @contextmanager
    def open(cls, context: str, namespace: str) -> Iterator[Self]:
        """The cluster of a context, or of the current one.

        Raises OperatorError where no kubeconfig can be read, or none has that context; Unavailable, with the server's
        address, where it does not answer.
        """
        configuration, own = _configured(context)
        api = Api(client.ApiClient(configuration), may_write=lambda: False)
        try:
            yield cls(api, namespace or own)
        except Unavailable as e:
            raise OperatorError(f"{configuration.host}: {e}; next: see whether kubectl reaches it") from e
        finally:
            api.close()

    async def require_crds(self) -> None:
        await Cluster(self.api).require_crds()

    async def services(self, *, everywhere: bool) -> list[Body]:
        """All services of the namespace, or of all namespaces."""
        scope = "" if everywhere else f"/namespaces/{self.namespace}"
        found = await self.api.get(f"{GROUP}{scope}/inferenceservices")
        return list((found or {}).get("items", []))

    async def service(self, name: str) -> Body:
        """Raises OperatorError where there is none of that name."""
        found = await Cluster(self.api).service(ServiceKey(self.namespace, name))
        if found is None:
            others = [b["metadata"]["name"] for b in await self.services(everywhere=False)]
            there = f"there are {', '.join(sorted(others)[:10])}" if others else "there is none at all"
            raise OperatorError(f"no InferenceService {name} in namespace {self.namespace}; {there}")
        return found

    async def resource(self, kind: str, namespace: str, name: str) -> Body | None:
        plural = {"InferenceService": "inferenceservices", "ModelManifest": "modelmanifests"}[kind]
        return await self.api.get(f"{GROUP}/namespaces/{namespace}/{plural}/{name}")

    async def schema(self, kind: str) -> Body:
        """The cluster's schema of a kind, with its defaults; empty where the user may not read it."""
        try:
            found = await self.api.get("/openapi/v3/apis/pinrail.dev/v1alpha1")
        except Refused:
            return {}
        schemas: Body = (found or {}).get("components", {}).get("schemas", {})
        known: Body = schemas.get(_SPEC + kind, {})
        return known

    async def operator_image(self) -> str:
        """The default engine image that running operators are given; empty where none, several, or no right to ask."""
        return await self._operator_setting("PINRAIL_ENGINE_IMAGE") or ""

    async def host_caches(self) -> frozenset[str] | None:
        """Folders of nodes that running operators take as caches; None where several differ, or no right to ask."""
        given = await self._operator_setting("PINRAIL_HOST_PATH_CACHES")
        return None if given is None else Settings(host_path_caches=given).allowed_host_caches

    async def _operator_setting(self, variable: str) -> str | None:
        """Empty where it is not set; None where no operator is found, several differ, or no right to ask."""
        try:
            found = await self.api.get("/apis/apps/v1/deployments", labelSelector=OPERATOR)
        except Refused:
            return None
        containers = [c for d in (found or {}).get("items", []) for c in d["spec"]["template"]["spec"]["containers"]]
        given = [{v["name"]: v.get("value", "") for v in c.get("env", [])} for c in containers]
        values = {env.get(variable, "") for env in given if "PINRAIL_ENGINE_IMAGE" in env}  # others are beside them
        return str(values.pop()) if len(values) == 1 else None

    async def facts_of(self, name: str) -> Facts:
        """Of the service of that name; raises OperatorError where there is none."""
        return await self.facts(await self.service(name))

    async def facts(self, body: Body) -> Facts:
        """All that the cluster states about one service; ready pods are asked for what they verified themselves."""
        try:
            service = InferenceService.from_body(body)
        except SpecError as e:
            return Facts(body=body, problem=str(e))
        cluster = Cluster(self.api)
        found = await cluster.pods(service)
        observed = await cluster.observe(service, listed=found)
        service = service.verified_by(running_verifier(observed)).asked_from(observed.operator_namespace)
        ready = {p.name for p in observed.ready_pods}
        asked = [p for p in found if p["metadata"]["name"] in ready]
        answers = await asyncio.gather(*(asyncio.to_thread(self._report, p) for p in asked))
        reports = {p["metadata"]["name"]: a for p, a in zip(asked, answers, strict=True)}
        cache = service.model.cache
        return Facts(
            body=body,
            service=service,
            observed=observed,
            pods=tuple(found),
            reports=reports,
            host_caches=await self.host_caches() if cache is not None and cache.host_path else None,
        )

    def _report(self, pod: Body) -> Report:
        """What a pod's own metrics page says, through the API server; never raises."""
        try:
            status, page = self._page(pod, endpoints.METRICS)
        except _UNHEARD as e:
            return Report(problem=f"did not answer: {type(e).__name__}")
        if status != 200:
            return Report(problem=f"status {status} for its metrics page: {_said(page)}")
        samples = read(page.decode(errors="replace"))
        try:
            digest, runs = digest_of(samples), runtime_of(samples)
        except SampleError as e:
            return Report(problem=str(e))
        runs = self._version(pod) if runs == UNSAID and Pod.from_body(pod).verified else runs
        return Report(digest, "" if digest else "its metrics page does not say what it verified", runs)

    def _version(self, pod: Body) -> Runtime:
        """What an engine that is not ours says of its version."""
        try:
            status, answer = self._page(pod, endpoints.VERSION)
        except _UNHEARD:
            return UNSAID
        return version_runtime(answer.decode(errors="replace")) if status == 200 else UNSAID

    def _page(self, pod: Body, path: str) -> tuple[int, bytes]:
        """Status and body of what a pod serves; raises one of _UNHEARD."""
        metadata = pod["metadata"]
        where = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}:{_port(pod)}/proxy"
        parts = self.api.http.param_serialize("GET", where + path, auth_settings=["BearerToken"])
        answer: Any = self.api.http.call_api(*parts[:3], None, _request_timeout=_PAGE_TIMEOUT)
        return answer.status, answer.read()


def _configured(context: str) -> tuple[client.Configuration, str]:
    """How to reach a cluster, and the namespace that its context names."""
    made = client.Configuration()
    file = os.environ.get("KUBECONFIG") or None
    try:
        config.load_kube_config(file, context or None, made)  # type: ignore[no-untyped-call]
        contexts, current = config.list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as e:
        where = file or "~/.kube/config"
        raise OperatorError(f"kubeconfig {where}: {e}; next: set KUBECONFIG or --context") from e
    made.connection_pool_maxsize = CONCURRENCY
    made.retries = False
    chosen = next((c for c in contexts if c["name"] == context), current)
    return made, chosen["context"].get("namespace") or "default"


def _port(pod: Body) -> int:
    """The port that the engine's container names, ours if it names none."""
    engines = [c for c in pod["spec"]["containers"] if c["name"] == pods.ENGINE]
    ports = [p["containerPort"] for c in engines for p in c.get("ports", []) if p.get("name") == endpoints.PORT_NAME]
    return int(ports[0]) if ports else endpoints.PORT


def _said(page: bytes) -> str:
    try:
        return str(json.loads(page)["message"])[:200]
    except (ValueError, KeyError, TypeError):
        return page[:200].decode(errors="replace")
