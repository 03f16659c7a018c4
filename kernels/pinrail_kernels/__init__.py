"""The operations of the engine: for each, a plain definition, and the fast paths that must equal it."""
