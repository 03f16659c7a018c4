"""What an InferenceService asks for, parsed once at the edge. Pure.

Past `from_body`, code trusts these types: an invalid one cannot be built. Defaults stand here and in the CRD's schema,
and a test compares them. Knows nothing of Kopf, the network or the clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from pinrail_contract import endpoints
from pinrail_contract.launch import (
    LaunchSpec,
    Verification,
)
from pinrail_contract.pins import API_VERSION, DIGEST, Source

from . import environment
from .engine_fields import ENGINE_FIELDS, LIMIT_FIELDS, Engine, EngineType, Limits, Parallelism, Scheduling
from .errors import SpecError
from .fields import Fields
from .model_cache import ModelCache
from .network_policy import PROXIES, NetworkAccess
from .passed_through import PodSettings
from .scaling_policy import MAX_REPLICAS, ScalingPolicy
from .source_access import SourceAccess

KIND = "InferenceService"


class OnUnschedulable(StrEnum):
    """What a roll-out does whose new pod finds no node while an old one holds the place."""

    WAIT = "Wait"  # says so, and waits
    REPLACE = "Replace"  # lets one old pod go first
    ABORT = "Abort"  # goes back to the previous revision


@dataclass(frozen=True, slots=True, order=True)
class ServiceKey:
    """Which InferenceService; what queues and logs name it by."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPin:
    """`spec.model`"""

    name: str  # what requests give in `model`
    manifest: str  # name of a ModelManifest in the same namespace
    digest: str  # sha256:… that it must have
    access: SourceAccess
    cache: ModelCache | None  # of fetched models; None: each pod fetches for itself

    @classmethod
    def parse(cls, f: Fields) -> Self:
        return cls(
            name=f.text(
                "name",
                pattern=r"[A-Za-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?",
                wanted="at most 128 letters, digits and ._/:- between letters or digits",
                most=128,
            ),
            manifest=f.child("manifestRef", {"name"}).reference("name"),
            digest=f.text("digest", pattern=DIGEST.pattern, wanted="sha256: and 64 lower-case hex digits"),
            access=SourceAccess.parse(f),
            cache=ModelCache.parse(f),
        )

    def cache_of(self, source: Source) -> ModelCache | None:
        """The cache that pods use; what is mounted is not fetched into one."""
        return self.cache if source.is_fetched else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """`spec.rollout`: how pods of one revision give way to those of the next."""

    max_surge: int | str  # pods above the wanted number, or a share of it such as "25%"
    max_unavailable: int | str  # pods that may be missing, or a share of them
    on_unschedulable: OnUnschedulable
    progress_deadline: int | None  # seconds without progress after which it is stalled; None: by the model's size

    @classmethod
    def parse(cls, f: Fields) -> Self:
        surge = f.count_or_share("maxSurge", most=MAX_REPLICAS, default=1)
        unavailable = f.count_or_share("maxUnavailable", most=MAX_REPLICAS, default=0)
        if surge in (0, "0%") and unavailable in (0, "0%"):
            seen = f"got maxSurge {surge} and maxUnavailable {unavailable}"
            raise SpecError("spec.rollout", f"{seen}, want one of them above 0: no pod could be replaced")
        return cls(
            max_surge=surge,
            max_unavailable=unavailable,
            on_unschedulable=f.choice("onUnschedulable", OnUnschedulable.WAIT),
            progress_deadline=f.optional_integer("progressDeadlineSeconds", least=1, most=7 * 86400),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceService:
    """One whole InferenceService."""

    key: ServiceKey
    uid: str  # empty outside a cluster
    generation: int
    model: ModelPin
    verification: Verification
    engine: Engine
    parallelism: Parallelism
    limits: Limits
    scheduling: Scheduling
    replicas: int | ScalingPolicy  # a fixed number, or how it follows the load
    pod: PodSettings
    api_key_secret: str  # name of a Secret whose every value is a key; empty: whoever reaches a replica may ask
    network: NetworkAccess
    drain_timeout: int  # seconds
    min_available: int | None  # replicas that evictions must leave; None: they take one at a time
    protects_startup: bool  # autoscalers of nodes leave a pod where it is until it is ready
    rollout: Rollout
    revision_history: int  # old revisions that the Deployment keeps
    paused: bool  # everything is left as it is
    suspended: bool  # no pods, whatever `replicas` says
    written: Mapping[str, Any] = field(repr=False, compare=False)  # the spec as it came
    verifier: str = ""  # image of ours that verifies the files of an engine which does not; empty where none is known
    operator_namespace: str = ""  # of the operator's pods, which ask replicas for their figures; empty: it runs in none

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """Parse a whole resource, with the defaults that the schema would fill in.

        Raises SpecError that names the field, the value seen and the value wanted.
        """
        if body.get("kind") != KIND or body.get("apiVersion") != API_VERSION:
            seen = f"got {body.get('kind')!r} of {body.get('apiVersion')!r}"
            raise SpecError("kind", f"{seen}, want {KIND} of {API_VERSION}")
        metadata = Fields(body.get("metadata"), "metadata")
        f = Fields(body.get("spec"), "spec", _SPEC_FIELDS)
        verification = f.child("verification", {"mode"}).choice("mode", Verification.ENFORCE)
        engine = Engine.parse(f.child("engine", ENGINE_FIELDS), verification)
        security = f.child("security", {"apiKeySecretRef", "networkPolicy"})
        drain = f.child("drain", {"timeoutSeconds"})
        disruption = f.child("disruption", {"minAvailable", "protectStartup"})
        network = NetworkAccess.parse(security.child("networkPolicy", {"enabled", "from", "egressPorts"}))
        if network.enabled:
            environment.require_known(engine.env, PROXIES, "the NetworkPolicy of the service opens its port")
        return cls(
            key=ServiceKey(_namespace(metadata), _name(metadata)),
            uid=metadata.text("uid", pattern=r".+", wanted="a uid", default=""),
            generation=metadata.integer("generation", least=0, most=2**63, default=0),
            model=ModelPin.parse(f.child("model", _MODEL_FIELDS)),
            verification=verification,
            engine=engine,
            parallelism=Parallelism.parse(f.child("parallelism", {"tensor", "pipeline"}), engine.type),
            limits=Limits.parse(f.child("limits", LIMIT_FIELDS)),
            scheduling=Scheduling.parse(f.child("scheduling", {"policy", "targetStepMilliseconds", "stepsInFlight"})),
            replicas=_replicas(f),
            pod=PodSettings.parse(f),
            api_key_secret=_secret(security),
            network=network,
            drain_timeout=drain.integer("timeoutSeconds", least=0, most=3600, default=30),
            min_available=disruption.optional_integer("minAvailable", least=0, most=MAX_REPLICAS),
            protects_startup=disruption.flag("protectStartup", False),
            rollout=Rollout.parse(f.child("rollout", _ROLLOUT_FIELDS)),
            revision_history=f.integer("revisionHistoryLimit", least=0, most=100, default=3),
            paused=f.flag("paused", False),
            suspended=f.flag("suspend", False),
            written=body["spec"],
        )

    def verified_by(self, image: str) -> Self:
        """The same, with the image of ours that verifies files where the engine does not."""
        return replace(self, verifier=image) if self.engine.type is EngineType.VLLM else self

    def asked_from(self, namespace: str) -> Self:
        """The same, with the namespace of the operator's pods; empty where it runs in none."""
        return replace(self, operator_namespace=namespace)

    @property
    def scaling(self) -> ScalingPolicy | None:
        """How replicas follow the load; None where they are fixed, or none may run."""
        return self.replicas if isinstance(self.replicas, ScalingPolicy) and not self.suspended else None

    @property
    def least_replicas(self) -> int:
        """How many a new service starts with, and keeps at rest."""
        if self.suspended:
            return 0
        return self.replicas.min_replicas if isinstance(self.replicas, ScalingPolicy) else self.replicas

    def launch(
        self,
        *,
        model_dir: str,
        manifest: str,
        host: str = "127.0.0.1",
        port: int = endpoints.PORT,
        api_keys_dir: str = "",
    ) -> LaunchSpec:
        """What one replica's `pinrail serve` is told.

        Args:
            model_dir: The folder of the model's files, as the engine sees it.
            manifest: The path of the manifest, as the engine sees it.
            host: The address that the engine listens on.
            port: The port that the engine listens on.
            api_keys_dir: The folder of API keys, as the engine sees it; empty where none is asked for.
        """
        return LaunchSpec(
            model_dir=model_dir,
            manifest=manifest,
            digest=self.model.digest,
            served_model_name=self.model.name,
            host=host,
            port=port,
            verification=self.verification,
            backend=self.engine.backend,
            dtype=self.engine.dtype,
            quantization=self.engine.quantization,
            max_model_len=self.limits.max_model_len,
            max_num_seqs=self.limits.max_num_seqs,
            max_num_batched_tokens=self.limits.max_num_batched_tokens,
            policy=self.scheduling.policy,
            target_step_ms=self.scheduling.target_step,
            steps_in_flight=self.scheduling.steps_in_flight,
            max_queued=self.limits.max_queued,
            max_queued_tokens=self.limits.max_queued_tokens,
            max_queue_wait=self.limits.max_queue_wait,
            block_size=self.limits.block_size,
            kv_cache_memory=self.limits.kv_cache_memory,
            prefix_cache=self.engine.prefix_cache,
            cache_events=self.engine.cache_events,
            otlp_traces_endpoint=self.engine.traces_endpoint,
            api_keys_dir=api_keys_dir,
            drain_timeout=self.drain_timeout,
        )


_MODEL_FIELDS = {
    "name", "manifestRef", "digest", "tokenSecretRef", "credentialsSecretRef", "caConfigMapRef", "endpoint", "cache",
}  # fmt: skip
_ROLLOUT_FIELDS = {"maxSurge", "maxUnavailable", "onUnschedulable", "progressDeadlineSeconds"}
_SCALING_FIELDS = {"minReplicas", "maxReplicas", "mode", "targets", "behavior", "metrics"}
_SPEC_FIELDS = {
    "model", "verification", "engine", "limits", "scheduling", "replicas", "scaling", "resources", "nodeSelector",
    "tolerations", "affinity", "topologySpreadConstraints", "priorityClassName", "runtimeClassName",
    "imagePullSecrets", "podLabels", "podAnnotations", "drain", "disruption", "rollout", "revisionHistoryLimit",
    "paused", "suspend", "security", "resourceClaims", "parallelism",
}  # fmt: skip


def _name(metadata: Fields) -> str:
    wanted = "at most 52 of a-z, 0-9 and '-', beginning with a letter: a Service is named by it"
    return metadata.text("name", pattern=r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", wanted=wanted)


def _namespace(metadata: Fields) -> str:
    return metadata.text("namespace", pattern=r"[a-z0-9-]{1,63}", wanted="a namespace", default="default")


def _replicas(f: Fields) -> int | ScalingPolicy:
    if f.has("replicas") == f.has("scaling"):
        seen = "both replicas and scaling" if f.has("replicas") else "neither replicas nor scaling"
        raise SpecError("spec", f"got {seen}, want exactly one of them")
    if f.has("replicas"):
        return f.integer("replicas", least=0, most=MAX_REPLICAS)
    return ScalingPolicy.parse(f.child("scaling", _SCALING_FIELDS))


def _secret(f: Fields) -> str:
    return f.child("apiKeySecretRef", {"name"}).reference("name") if f.has("apiKeySecretRef") else ""
