"""`spec.security.networkPolicy`: who may reach a service's pods, and what they may reach. Pure.

A policy holds for a pod's whole life, so the engine keeps what the container that fetches needs. Addresses are not
told apart: hubs, registries and stores redirect to hosts that nobody can name beforehand, so egress is by port alone.
Most plugins judge it after a Service's translation, by the port of the pod behind it.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from pinrail_contract import endpoints
from pinrail_contract.access import HUB, endpoint_variable
from pinrail_contract.pins import Source

from .errors import SpecError
from .fields import Fields

Rule = dict[str, Any]
Variables = Mapping[str, str]  # of the container that fetches, those whose values are known

MOST_PEERS = 16
MOST_PORTS = 16  # besides those that follow from the spec
MOST_EXCEPTIONS = 4  # of one ipBlock
MOST_LABELS = 3  # of one selector
MOST_VALUES = 4  # of its one expression

OPERATOR = {"app.kubernetes.io/name": "pinrail-operator"}
"""What the chart labels the operator's pods with, whatever the release is called."""

_NAMESPACE = "kubernetes.io/metadata.name"  # the label that Kubernetes itself gives to every namespace
_DNS = (53, 5353)  # of a Service, and of the pods behind it where they may not open a port below 1024, as on OpenShift
_AUTHORITY = re.compile(r"(?P<scheme>[a-z0-9]+)://([^/?#@]*@)?(\[[^]]*\]|[^/?#:]*)(:(?P<port>[0-9]{1,5})(?=[/?#]|$))?")
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")  # variables that every HTTP client of ours obeys
_LABEL_VALUE = r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?"


class Operator(StrEnum):
    """Of a label selector's expression."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAccess:
    """`spec.security.networkPolicy`"""

    enabled: bool
    peers: tuple[Mapping[str, Any], ...]  # who may ask, as NetworkPolicyPeers; none: pods of the same namespace
    ports: tuple[int, ...] = ()  # of TCP, that pods may reach besides

    @classmethod
    def parse(cls, f: Fields) -> Self:
        given = f.children("from", {"podSelector", "namespaceSelector", "ipBlock"}, MOST_PEERS)
        if f.has("from") and not given:
            wanted = f"want 1 to {MOST_PEERS} peers; left out, pods of the same namespace may ask"
            raise SpecError(f.path("from"), f"got none, {wanted}")
        return cls(
            enabled=f.flag("enabled", False),
            peers=tuple(_peer(peer, f.path(f"from[{i}]")) for i, peer in enumerate(given)),
            ports=tuple(
                _port(port, f.path(f"egressPorts[{i}]")) for i, port in enumerate(f.items("egressPorts", MOST_PORTS))
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Older:
    """What pods that are yet to go may still have to fetch, or Kubernetes' own replacements of them, and by what."""

    sources: tuple[Source, ...] = ()
    variables: tuple[Variables, ...] = ()


def ingress(access: NetworkAccess, operator_namespace: str) -> list[Rule]:
    """Who may reach the engine's port, and no other: the peers that are given, or the namespace; and the operator.

    Args:
        access: Who may ask.
        operator_namespace: Of the operator's own pods, which ask replicas for their figures; empty: it runs in no pod.
    """
    peers = access.peers or ({"podSelector": {}},)
    port = {"port": endpoints.PORT_NAME, "protocol": "TCP"}
    return [{"ports": [port], "from": [*(dict(p) for p in peers), *_operator(operator_namespace)]}]


def egress(
    sources: Iterable[Source], variables: Iterable[Variables], traces_endpoint: str, more: Iterable[int] = ()
) -> list[Rule]:
    """What a service's pods have to reach; an empty list lets nothing out.

    | the model comes from   | TCP port                              |
    |------------------------|---------------------------------------|
    | pvc://                 | -                                     |
    | https://host[:port]/   | the address's, or 443                 |
    | oci://registry[:port]/ | the address's, or 443                 |
    | hf://, s3://           | of its endpoint's variable, or 443    |
    | any, traces are sent   | the endpoint's, or 443, or 80 by http |
    | any                    | of `more`                             |

    Where there is any, so are name servers; where there is one but of `more`, the ports of proxies that variables name.

    Args:
        sources: Where the model comes from, and where pods of older revisions may still have to fetch theirs.
        variables: What the containers that fetch are told, of each revision; whose source is whose is not told apart.
        traces_endpoint: URL that traces are sent to; empty: none are.
        more: Further ports, of `egressPorts`.
    """
    told = tuple(variables)
    fetched = [url for source in sources for one in told for url in _addresses(source, one)]
    urls = [*fetched, *([traces_endpoint] if traces_endpoint else [])]
    named = [value for one in told for name, value in one.items() if name in PROXIES and value and urls]
    proxies = [value if "://" in value else f"http://{value}" for value in named]
    ports = sorted({*more, *(port_of(url) for url in (*urls, *proxies))})
    if not ports:
        return []
    return [
        {"ports": [{"port": port, "protocol": protocol} for port in _DNS for protocol in ("UDP", "TCP")]},
        {"ports": [{"port": port, "protocol": "TCP"} for port in ports]},
    ]


def port_of(url: str) -> int:
    """The port that a URL names, or its scheme's own; of what is no URL 443: whoever opens it will say so."""
    match = _AUTHORITY.match(url)
    named = int(match["port"]) if match and match["port"] else 0
    if 0 < named < 2**16:
        return named
    return 80 if match and match["scheme"] == "http" else 443


def operator_namespace(policy: Mapping[str, Any]) -> str:
    """Where the operator runs that a policy of ours lets in; empty where it lets in none."""
    peers = [peer for rule in policy.get("spec", {}).get("ingress", []) for peer in rule.get("from", [])]
    found = [p["namespaceSelector"] for p in peers if _operator(_named(p)) == [p]]
    return str(found[-1]["matchLabels"][_NAMESPACE]) if found else ""


def _named(peer: Mapping[str, Any]) -> str:
    """The namespace that a peer names by Kubernetes' own label."""
    return str((peer.get("namespaceSelector") or {}).get("matchLabels", {}).get(_NAMESPACE, ""))


def _operator(namespace: str) -> list[Rule]:
    if not namespace:
        return []
    return [{"namespaceSelector": {"matchLabels": {_NAMESPACE: namespace}}, "podSelector": {"matchLabels": OPERATOR}}]


def _addresses(source: Source, variables: Variables) -> list[str]:
    """URLs that the container which fetches begins with."""
    if not source.is_fetched:
        return []
    return [variables.get(endpoint_variable(source)) or HUB] if source.scheme in ("hf", "s3") else [source.uri]


def _port(value: Any, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**16:
        raise SpecError(path, f"got {str(value)[:80]!r}, want a port: a whole number of 1 to 65535")
    return value


def _peer(f: Fields, path: str) -> dict[str, Any]:
    """A NetworkPolicyPeer as the API server gives it back: what is empty is left out, but an empty selector."""
    selectors = {name: _selector(f, name) for name in ("podSelector", "namespaceSelector") if f.has(name)}
    if f.has("ipBlock") and selectors:
        raise SpecError(path, f"got ipBlock beside {' and '.join(selectors)}, want ipBlock alone")
    if f.has("ipBlock"):
        return {"ipBlock": _block(f.child("ipBlock", {"cidr", "except"}))}
    if not selectors:
        raise SpecError(path, "got none of them, want podSelector, namespaceSelector, both, or ipBlock")
    return selectors


def _selector(f: Fields, name: str) -> dict[str, Any]:
    selector = f.child(name, {"matchLabels", "matchExpressions"})
    labels = selector.mapping("matchLabels")
    if len(labels) > MOST_LABELS:
        raise SpecError(selector.path("matchLabels"), f"got {len(labels)} labels, want at most {MOST_LABELS}")
    for key, value in labels.items():
        _require_label_value(value, selector.path(f"matchLabels.{key}"))
    expressions = [_expression(e) for e in selector.children("matchExpressions", {"key", "operator", "values"}, 1)]
    given = {"matchLabels": dict(labels), "matchExpressions": expressions}
    return {key: value for key, value in given.items() if value}


def _expression(f: Fields) -> dict[str, Any]:
    key = f.text("key", pattern=r"[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9])?", wanted="a label's name", most=128)
    operator, values = f.choice("operator", Operator.IN), f.items("values", MOST_VALUES)
    takes = operator in (Operator.IN, Operator.NOT_IN)
    if takes != bool(values):
        wanted = "one or more" if takes else "none"
        raise SpecError(f.path("values"), f"got {len(values) or 'none'}, want {wanted} while operator is {operator}")
    for i, value in enumerate(values):
        _require_label_value(value, f.path(f"values[{i}]"))
    return {"key": key, "operator": str(operator), **({"values": values} if values else {})}


def _require_label_value(value: object, path: str) -> None:
    if not isinstance(value, str) or not re.fullmatch(_LABEL_VALUE, value) or len(value) > 63:
        wanted = "want a label's value: at most 63 letters, digits and ._- between letters or digits"
        raise SpecError(path, f"got {str(value)[:80]!r}, {wanted}")


def _block(f: Fields) -> dict[str, Any]:
    cidr = f.text("cidr", pattern=r"[^/]+/[0-9]{1,3}", wanted="addresses such as 10.0.0.0/8 or fd00::/8", most=43)
    whole = _network(cidr, f.path("cidr"))
    given = f.items("except", MOST_EXCEPTIONS)
    for i, text in enumerate(given):
        part = _network(text, f.path(f"except[{i}]"))
        if part.version != whole.version or part == whole or not part.subnet_of(whole):  # type: ignore[arg-type]
            raise SpecError(f.path(f"except[{i}]"), f"got {text}, want a part of {cidr} that is not all of it")
    return {"cidr": cidr, **({"except": given} if given else {})}


def _network(text: Any, path: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(str(text), strict=False)
    except ValueError:
        raise SpecError(path, f"got {text!r}, want addresses such as 10.0.0.0/8 or fd00::/8") from None
