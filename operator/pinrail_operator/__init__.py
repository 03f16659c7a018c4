"""The operator: turns InferenceService resources into pods, keeps their number right, and reports why."""
