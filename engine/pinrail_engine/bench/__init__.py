"""Load for an engine, and what came of it: workloads, drivers, the simulator, figures and plots.

Reads traces and makes synthetic mixes (`workload`, `traces`, `synthetic`), plays them to an engine (`drive`), a server
(`http`) or the scheduler alone (`simulator`), and turns the records into figures (`report`, `table`, `plot`). Four
workloads are fixed (`fixed`): they are measured in turns (`turns`), and their figures are medians (`spread`,
`fixed_table`). Knows nothing of torch; a command that starts an engine is outside, or starts a process (`process`).
"""
