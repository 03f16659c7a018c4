"""The model manifest: a closed list of files, each by size and sha256, and the digest over all of it. Pure.

The digest covers what is served, and what computes it where that is pinned. It leaves out `source`, where the bytes
come from: a mirror, a volume or a laptop folder with the same bytes is the same pin.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from .canonical import canonical_bytes, known, sha256_of
from .errors import ManifestError
from .runtime import UNSAID, Runtime

SCHEMA_VERSION = 1
API_VERSION = "pinrail.dev/v1alpha1"
KIND = "ModelManifest"

_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
MAX_FILES = 512
SOURCES = (
    "pvc://claim/path, https://base/, hf://organisation/name, oci://registry/repository@sha256:…, s3://bucket/prefix"
)
"""What pods can read, for people."""

FETCHED_SCHEMES = ("https", "hf", "oci", "s3")
SOURCE_SCHEMES = ("pvc", *FETCHED_SCHEMES, "file")
_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_IN_REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+@sha256:[0-9a-f]{64}")
_IN_STORE = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^?#\s]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Role(StrEnum):
    """What a file is for; the engine opens files by role and name, never by search."""

    WEIGHTS = "weights"
    INDEX = "index"
    CONFIG = "config"
    TOKENIZER = "tokenizer"
    CHAT_TEMPLATE = "chatTemplate"
    GENERATION = "generation"


@dataclass(frozen=True, slots=True)
class FilePin:
    path: str  # one level, no folders
    size: int  # bytes
    sha256: str  # 64 lower-case hex digits
    role: Role

    @classmethod
    def from_json(cls, value: Any, field: str) -> Self:
        known(value, field, {"path", "size", "sha256", "role"})
        path, size, digest, role = (value.get(k) for k in ("path", "size", "sha256", "role"))
        if not isinstance(path, str) or not _FILE_NAME.fullmatch(path):
            raise ManifestError(f"{field}.path", f"got {path!r}, want a file name of [A-Za-z0-9._-], no folders")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ManifestError(f"{field}.size", f"got {size!r}, want a whole number of bytes")
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise ManifestError(f"{field}.sha256", f"got {digest!r}, want 64 lower-case hex digits")
        if role not in list(Role):
            raise ManifestError(f"{field}.role", f"got {role!r}, want one of {', '.join(Role)}")
        return cls(path, size, digest, Role(role))

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "sha256": self.sha256, "role": str(self.role)}


_ARCHITECTURE_FIELDS = {  # name in the manifest -> attribute
    "class": "class_name",
    "hiddenSize": "hidden_size",
    "layers": "layers",
    "heads": "heads",
    "kvHeads": "kv_heads",
    "headDim": "head_dim",
    "vocabSize": "vocab_size",
    "maxPositionEmbeddings": "max_position_embeddings",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of the network, as config.json says it; the engine compares both before it allocates."""

    class_name: str  # e.g. LlamaForCausalLM
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int  # tokens

    @classmethod
    def from_json(cls, value: Any, field: str) -> Self:
        known(value, field, set(_ARCHITECTURE_FIELDS))
        name = value.get("class")
        if not isinstance(name, str) or not name:
            raise ManifestError(f"{field}.class", f"got {name!r}, want a class name such as LlamaForCausalLM")
        numbers = {}
        for key, attribute in _ARCHITECTURE_FIELDS.items():
            if key != "class":
                numbers[attribute] = _positive(value.get(key), f"{field}.{key}")
        return cls(class_name=name, **numbers)

    @classmethod
    def from_config(cls, config: Any, field: str = "config.json") -> Self:
        """Read the Hugging Face config.json; raises ManifestError that names the missing key."""
        if not isinstance(config, Mapping):
            raise ManifestError(field, "want a JSON object")
        classes = config.get("architectures")
        if not isinstance(classes, list) or len(classes) != 1 or not isinstance(classes[0], str):
            raise ManifestError(f"{field}.architectures", f"got {classes!r}, want a list of one class name")
        hidden = _positive(config.get("hidden_size"), f"{field}.hidden_size")
        heads = _positive(config.get("num_attention_heads"), f"{field}.num_attention_heads")
        return cls(
            class_name=classes[0],
            hidden_size=hidden,
            layers=_positive(config.get("num_hidden_layers"), f"{field}.num_hidden_layers"),
            heads=heads,
            kv_heads=_positive(config.get("num_key_value_heads") or heads, f"{field}.num_key_value_heads"),
            head_dim=_positive(config.get("head_dim") or hidden // heads, f"{field}.head_dim"),
            vocab_size=_positive(config.get("vocab_size"), f"{field}.vocab_size"),
            max_position_embeddings=_positive(
                config.get("max_position_embeddings"), f"{field}.max_position_embeddings"
            ),
        )

    def to_json(self) -> dict[str, Any]:
        return {key: getattr(self, attribute) for key, attribute in _ARCHITECTURE_FIELDS.items()}


@dataclass(frozen=True, slots=True)
class Source:
    """Where the files come from; not part of the digest."""

    uri: str  # pvc://claim/path, https://base/, hf://organisation/name, oci://…@sha256:…, s3://bucket/prefix, file:///path
    revision: str = ""  # what the source calls this version: of hf:// a commit, else informational

    @classmethod
    def from_json(cls, value: Any, field: str) -> Self:
        known(value, field, {"uri", "revision"})
        uri, revision = value.get("uri"), value.get("revision", "")
        scheme, separator, rest = uri.partition("://") if isinstance(uri, str) else ("", "", "")
        if scheme not in SOURCE_SCHEMES or not separator or not rest or ".." in rest.split("/"):
            raise ManifestError(f"{field}.uri", f"got {uri!r}, want {SOURCES}, or file:///path, without '..'")
        if not isinstance(revision, str):
            raise ManifestError(f"{field}.revision", f"got {revision!r}, want a string")
        if scheme == "hf" and not _HUB_NAME.fullmatch(rest):
            raise ManifestError(f"{field}.uri", f"got {uri!r}, want hf://organisation/name")
        if scheme == "oci" and not _IN_REGISTRY.fullmatch(rest):
            wanted = "oci://registry/repository@sha256:<64 hex digits>: tags move"
            raise ManifestError(f"{field}.uri", f"got {uri!r}, want {wanted}")
        if scheme == "s3" and not _IN_STORE.fullmatch(rest):
            raise ManifestError(f"{field}.uri", f"got {uri!r}, want s3://bucket/prefix, without '?' and '#'")
        if scheme == "hf" and not _COMMIT.fullmatch(revision):
            wanted = "the 40 lower-case hex digits of a commit: branches and tags move"
            raise ManifestError(f"{field}.revision", f"got {revision!r}, want {wanted}")
        return cls(uri, revision)

    def to_json(self) -> dict[str, Any]:
        return {"uri": self.uri, **({"revision": self.revision} if self.revision else {})}

    @property
    def scheme(self) -> str:
        return self.uri.partition("://")[0]

    @property
    def is_fetched(self) -> bool:
        """Over the network, before the engine starts; else it is mounted."""
        return self.scheme in FETCHED_SCHEMES

    @property
    def version(self) -> str:
        """What is read: the address, with the commit where that is part of it."""
        return f"{self.uri}@{self.revision}" if self.scheme == "hf" else self.uri

    @property
    def location(self) -> str:
        """What stands after `://`."""
        return self.uri.partition("://")[2]


@dataclass(frozen=True, slots=True)
class ModelManifest:
    files: tuple[FilePin, ...]  # sorted by path, no two alike
    architecture: Architecture
    source: Source
    runtime: Runtime = UNSAID  # engine and numerics, as far as they are pinned

    @classmethod
    def from_spec(cls, spec: Any, field: str = "spec") -> Self:
        """Parse a ModelManifest's `spec`; raises ManifestError with the field, what was seen and what is wanted."""
        known(spec, field, {"schemaVersion", "files", "architecture", "source", "engine", "numerics"})
        version = spec.get("schemaVersion")
        if version != SCHEMA_VERSION or isinstance(version, bool):
            raise ManifestError(
                f"{field}.schemaVersion",
                f"got {version!r}, want {SCHEMA_VERSION}: a newer schema needs a newer pinrail",
            )
        listed = spec.get("files")
        if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_FILES:
            raise ManifestError(f"{field}.files", f"want a list of 1 to {MAX_FILES} files")
        files = [FilePin.from_json(f, f"{field}.files[{i}]") for i, f in enumerate(listed)]
        return cls.of(
            files,
            Architecture.from_json(spec.get("architecture"), f"{field}.architecture"),
            Source.from_json(spec.get("source"), f"{field}.source"),
            Runtime.from_spec(spec, field),
            field=field,
        )

    @classmethod
    def of(
        cls,
        files: Iterable[FilePin],
        architecture: Architecture,
        source: Source,
        runtime: Runtime = UNSAID,
        field: str = "spec",
    ) -> Self:
        """Check what no single file can show: unique names, one config, weights, a tokenizer."""
        ordered = tuple(sorted(files, key=lambda f: f.path))
        names = [f.path for f in ordered]
        for name in names:
            if names.count(name) > 1:
                raise ManifestError(f"{field}.files", f"lists {name!r} twice")
        roles = [f.role for f in ordered]
        for role in (Role.CONFIG, Role.WEIGHTS, Role.TOKENIZER):
            if role not in roles:
                raise ManifestError(f"{field}.files", f"has no file of role {role}, want at least one")
        return cls(ordered, architecture, source, runtime)

    def to_spec(self) -> dict[str, Any]:
        return {**self._identity(), "source": self.source.to_json()}

    def canonical(self) -> bytes:
        """The bytes that the digest is taken of: everything but the source."""
        return canonical_bytes(self._identity())

    @property
    def digest(self) -> str:
        return sha256_of(self.canonical())

    @property
    def files_digest(self) -> str:
        """Of the files alone: manifests of the same bytes under the same names share it, whatever else they pin."""
        return sha256_of(canonical_bytes({f.path: {"size": f.size, "sha256": f.sha256} for f in self.files}))

    @property
    def total_size(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files)

    def by_role(self, role: Role) -> tuple[FilePin, ...]:
        return tuple(f for f in self.files if f.role is role)

    def _identity(self) -> dict[str, Any]:
        return {
            "schemaVersion": SCHEMA_VERSION,
            "architecture": self.architecture.to_json(),
            "files": [f.to_json() for f in self.files],
            **self.runtime.to_spec(),
        }


def role_of(name: str) -> Role | None:
    """The role of a file in a standard model folder, or None for one that Pinrail does not serve."""
    fixed = {
        "config.json": Role.CONFIG,
        "generation_config.json": Role.GENERATION,
        "model.safetensors.index.json": Role.INDEX,
        "tokenizer.json": Role.TOKENIZER,
        "tokenizer_config.json": Role.TOKENIZER,
        "special_tokens_map.json": Role.TOKENIZER,
        "vocab.json": Role.TOKENIZER,
        "merges.txt": Role.TOKENIZER,
        "added_tokens.json": Role.TOKENIZER,
        "chat_template.jinja": Role.CHAT_TEMPLATE,
    }
    if name.endswith(".safetensors"):
        return Role.WEIGHTS
    return fixed.get(name)


def _positive(value: Any, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise ManifestError(field, f"got {value!r}, want a whole number above 0")
    return value
