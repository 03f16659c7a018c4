"""What the operator and the engine must agree on: pins, endpoints, launch flags, metric names.

Standard library only, so that both images hold it at no cost.
"""
