"""Makes `operator_builders` importable: there are no packages under tests/."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("operator", deadline=None)  # a shared machine is slow now and then
settings.load_profile("operator")
