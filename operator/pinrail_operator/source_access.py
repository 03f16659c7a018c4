"""What `spec.model` says of reaching a source, and what the container that fetches is given for it. Pure.

Nothing of it is given to the engine's container, and the operator reads neither the Secret nor the ConfigMap: the
kubelet puts them into the pod.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

from pinrail_contract import access
from pinrail_contract.pins import Source

from .fields import Fields

_CA_VOLUME = "source-ca"
_CA_DIR = "/etc/pinrail-source"
_CA_FILE = "ca.crt"
_LONGEST_URL = 512  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRef:
    """One key of a Secret or a ConfigMap in the service's namespace."""

    name: str
    key: str

    @classmethod
    def parse(cls, f: Fields, name: str) -> Self | None:
        """None where the field is absent."""
        return cls.read(f.child(name, {"name", "key"})) if f.has(name) else None

    @classmethod
    def read(cls, reference: Fields) -> Self:
        wanted = "a key: letters, digits and ._-"
        return cls(
            name=reference.reference("name"),
            key=reference.text("key", pattern=r"[A-Za-z0-9._-]+", wanted=wanted, most=253),
        )

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "key": self.key}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAccess:
    """How the source is reached, beyond what the manifest says."""

    token: KeyRef | None  # of a Secret
    keys: str  # name of a Secret that holds an object store's keys; empty: none
    ca: KeyRef | None  # of a ConfigMap
    endpoint: str  # URL of the hub or store; empty: the public one

    @classmethod
    def parse(cls, f: Fields) -> Self:
        wanted = f"an address that begins with https://, of at most {_LONGEST_URL} characters, without a query"
        return cls(
            token=KeyRef.parse(f, "tokenSecretRef"),
            keys=f.child("credentialsSecretRef", {"name"}).reference(
                "name", None if f.has("credentialsSecretRef") else ""
            ),
            ca=KeyRef.parse(f, "caConfigMapRef"),
            endpoint=f.text("endpoint", pattern=r"https://[^\s?#@]+", wanted=wanted, default="", most=_LONGEST_URL),
        )

    def used_by(self, source: Source) -> Self:
        """Without what that source makes no use of: it reaches no pod, and a change of it rolls none."""
        scheme = source.scheme
        return replace(
            self,
            token=self.token if scheme in ("https", "hf", "oci") else None,
            keys=self.keys if scheme == "s3" else "",
            ca=self.ca if source.is_fetched else None,
            endpoint=self.endpoint if scheme in ("hf", "s3") else "",
        )

    def unused_by(self, source: Source) -> tuple[str, ...]:
        """Paths of the fields that are given and that `used_by` leaves out."""
        used = self.used_by(source).identity()
        return tuple(f"spec.model.{name}" for name in self.identity() if name not in used)

    def identity(self) -> dict[str, Any]:
        """What a revision names of it: what is given."""
        given = {
            "tokenSecretRef": self.token and self.token.to_json(),
            "credentialsSecretRef": self.keys,
            "caConfigMapRef": self.ca and self.ca.to_json(),
            "endpoint": self.endpoint,
        }
        return {key: value for key, value in given.items() if value}

    def variables(self, source: Source) -> list[dict[str, Any]]:
        """Environment variables of the container that fetches; the token's comes from its Secret."""
        found: list[dict[str, Any]] = []
        if self.token is not None:
            reference = {"secretKeyRef": self.token.to_json()}
            found.append({"name": access.token_variable(source), "valueFrom": reference})
        if self.keys:
            found += [_from_secret(self.keys, name, optional=False) for name in access.STORE_KEYS]
            found += [_from_secret(self.keys, name, optional=True) for name in access.STORE_OPTIONS]
        if self.endpoint:
            found.append({"name": access.endpoint_variable(source), "value": self.endpoint})
        if self.ca is not None:
            found.append({"name": access.CA_FILE, "value": f"{_CA_DIR}/{_CA_FILE}"})
        return found

    def volumes(self) -> list[dict[str, Any]]:
        """Optional, so that the fetch itself can say which file is missing: the kubelet would only wait."""
        if self.ca is None:
            return []
        items = [{"key": self.ca.key, "path": _CA_FILE}]
        return [{"name": _CA_VOLUME, "configMap": {"name": self.ca.name, "items": items, "optional": True}}]

    def mounts(self) -> list[dict[str, Any]]:
        """Of the container that fetches."""
        return [{"name": _CA_VOLUME, "mountPath": _CA_DIR, "readOnly": True}] if self.ca is not None else []


def _from_secret(secret: str, name: str, *, optional: bool) -> dict[str, Any]:
    """A variable from the key of its own name."""
    reference = {"name": secret, "key": name, **({"optional": True} if optional else {})}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}
