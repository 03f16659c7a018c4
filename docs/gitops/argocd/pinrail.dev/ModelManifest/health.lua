-- Health of a ModelManifest: it is a fact, checked by the API server when it was created, and no controller changes it.
return {status = "Healthy", message = "a pin; each InferenceService that names it says whether it was verified"}
