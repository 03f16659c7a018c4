"""One certificate authority for one cluster, and the kubeconfigs that its certificates go into.

Made with the `openssl` command. Nothing here outlives the cluster, so every certificate lasts a year and no key is
encrypted.
"""

import base64
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

DAYS = "365"
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority in a folder of its own; the folder also gets what it signs."""

    folder: Path
    ca: Pair

    @classmethod
    def create(cls, folder: Path) -> Self:
        """Make the folder, readable by its owner alone, and a new authority in it."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ca = Pair(folder / "ca.crt", folder / "ca.key")
        _openssl("req", "-x509", *NEW_KEY, "-subj", "/CN=pinrail-cluster", "-days", DAYS,
                 "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
                 "-keyout", ca.key, "-out", ca.cert)  # fmt: skip
        return cls(folder, ca)

    def issue(self, name: str, *, group: str = "", sans: Sequence[str] = ()) -> Pair:
        """Sign a certificate for a client, or for a server where `sans` are given.

        Args:
            name: The common name: the user, to Kubernetes. It names the files too.
            group: The organisation: the group, to Kubernetes.
            sans: Names of a server, as `DNS:name` or `IP:address`.
        """
        pair = Pair(self.folder / f"{_file_name(name)}.crt", self.folder / f"{_file_name(name)}.key")
        request, extensions = pair.cert.with_suffix(".csr"), pair.cert.with_suffix(".ext")
        subject = (f"/O={group}" if group else "") + f"/CN={name}"
        usage = "extendedKeyUsage=clientAuth,serverAuth\n"
        extensions.write_text(usage + (f"subjectAltName={','.join(sans)}\n" if sans else ""))
        _openssl("req", "-new", *NEW_KEY, "-subj", subject, "-keyout", pair.key, "-out", request)
        _openssl("x509", "-req", "-in", request, "-CA", self.ca.cert, "-CAkey", self.ca.key, "-CAcreateserial",
                 "-days", DAYS, "-extfile", extensions, "-out", pair.cert)  # fmt: skip
        return pair

    def signing_key(self, name: str) -> Pair:
        """A bare key pair, for service-account tokens; `cert` is the public key."""
        pair = Pair(self.folder / f"{name}.pub", self.folder / f"{name}.key")
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", pair.key)
        _openssl("ec", "-in", pair.key, "-pubout", "-out", pair.cert)
        return pair

    def kubeconfig(self, file: Path, server: str, user: Pair) -> Path:
        """Write a kubeconfig that needs no other file. JSON, which is YAML too."""
        credentials = {"client-certificate-data": _inline(user.cert), "client-key-data": _inline(user.key)}
        cluster = {"server": server, "certificate-authority-data": _inline(self.ca.cert)}
        context = {"cluster": "pinrail", "user": "pinrail"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "pinrail", "cluster": cluster}],
            "users": [{"name": "pinrail", "user": credentials}],
            "contexts": [{"name": "pinrail", "context": context}],
            "current-context": "pinrail",
        }
        file.touch(mode=0o600)
        file.write_text(json.dumps(document, indent=1))
        return file


def _file_name(name: str) -> str:
    return name.replace(":", "-")


def _inline(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
