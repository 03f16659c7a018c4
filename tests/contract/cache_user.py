"""One of the processes of `test_cache_under_fire`: fetches a model, has it for a moment, and says whether it was whole.

Words: the cache's folder, its bound, a seed, the number of rounds, then files of manifests.
"""

import os
import random
import sys
import time
from pathlib import Path

from pinrail_contract.cached_fetch import fetch_cached, is_whole
from pinrail_contract.documents import read_manifest
from pinrail_contract.errors import CacheError
from pinrail_contract.model_cache import ModelCache, held


def main(root: str, bound: str, seed: str, rounds: str, *files: str) -> None:
    dice, cache = random.Random(int(seed)), ModelCache.open(Path(root))
    manifests = [read_manifest(Path(file)) for file in files]
    sign = Path(f"{root}-held-{os.getpid()}")
    for _ in range(int(rounds)):
        manifest = dice.choice(manifests)
        with held(cache, manifest.files_digest, sign):
            try:
                folder = fetch_cached(manifest, cache, int(bound), sign, wait=lambda _: None)
            except CacheError as e:
                print("full" if "no room" in str(e) else e, flush=True)
                continue
            time.sleep(dice.uniform(0.0, 0.02))
            print("whole" if is_whole(folder, manifest) else f"{folder} is not whole", flush=True)
    sign.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
