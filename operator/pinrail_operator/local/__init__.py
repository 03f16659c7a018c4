"""Local mode: the same InferenceService, the same decisions, with processes on 127.0.0.1 for pods."""
