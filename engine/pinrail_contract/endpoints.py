"""Where the engine answers: paths, the port and its name, what each probe means."""

PORT = 8000
PORT_NAME = "http"

HEALTH = "/health"
"""Liveness: 200 while the engine is idle or its step counter advances. Never "queue full"."""

READY = "/ready"
"""Readiness and startup: 200 once the pins are verified and a first forward pass has run, until draining."""

METRICS = "/metrics"

VERSION = "/version"
"""Where vLLM says its version; its metrics do not, as ours do."""

CACHE_EVENTS = "/cache_events"
"""What the prefix cache holds, as a log; there only where the engine was told to show it."""

MODELS = "/v1/models"
CHAT_COMPLETIONS = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
