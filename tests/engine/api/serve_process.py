"""A child process that runs `serve` around a fake engine, for tests of signals: `python serve_process.py PORT MODE`.

The answer to every prompt is "a", and then nothing more until the text "go" is read on stdin, which ends it.
"""

import logging
import sys
import threading

from fake_engine import FakeEngine, ids, pipeline

from pinrail_contract.launch import LaunchSpec
from pinrail_engine.api.server import ServerInfo, serve
from pinrail_engine.core.types import FinishReason, TokenEvent


class Scripted(FakeEngine):
    def follow(self, commands: list[str]) -> None:
        for command in commands:
            if command == "go":
                for request_id in list(self.open):
                    self.emit(request_id, [TokenEvent(ids("b"), FinishReason.LENGTH)])
            else:
                self.state = command


def main(port: int, drain_timeout: int, state: str) -> int:
    engine = Scripted(script=[TokenEvent(ids("a"))], state=state)
    lines = (line.strip() for line in sys.stdin)
    threading.Thread(target=lambda: [engine.follow([line]) for line in lines], daemon=True).start()
    spec = LaunchSpec(model_dir="m", manifest="m.json", port=port, drain_timeout=drain_timeout)
    return serve(engine, pipeline(), spec, ServerInfo(model_name="tiny", manifest_digest="", verification="Verified"))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
