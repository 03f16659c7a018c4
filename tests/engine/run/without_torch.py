"""The `pinrail` command in a process that has no torch; ends with a message where something has got hold of it."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class NoTorch(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


if __name__ == "__main__":
    sys.meta_path.insert(0, NoTorch())
    from pinrail_contract.__main__ import main

    code = main()
    sys.exit("torch was imported" if "torch" in sys.modules else code)
