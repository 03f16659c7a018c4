"""The bundled paged-KV engine: serves one pinned model over HTTP."""
