"""Load for an engine, and what came of it: workloads, drivers, the simulator, figures and plots.

Reads traces and makes synthetic mixes (`workload`, `traces`, `synthetic`), plays them to an engine (`drive`), a server
(`http`) or the scheduler alone (`simulator`), and turns the records into figures (`report`, `table`, `plot`). Knows
nothing of torch; the commands that start an engine are outside.
"""
