"""Stands in for a vLLM server: its flags by its own names and no others, health, version, metrics page, one completion.

    VLLM_STAND_IN=ADDRESS:PORT python vllm_stand_in.py FLAGS...

The flags are taken as a pod has them; the variable says where it really listens, since a test has no pod. A completion
holds its slot until the text "go" is read on stdin. Names and types of flags are those of `vllm serve --help`.
"""

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass, field

from aiohttp import web

GPU_BLOCKS = 64
VERSION = "0.32.0"
BLOCKS_EACH = 8  # that one running request holds


def flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vllm serve")
    for name in ("--model", "--served-model-name", "--host", "--tokenizer", "--revision", "--hf-overrides",
                 "--otlp-traces-endpoint", "--api-key", "--chat-template"):  # fmt: skip
        parser.add_argument(name)
    for name in ("--port", "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--seed"):
        parser.add_argument(name, type=int)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1)
    parser.add_argument("--block-size", type=int, choices=(1, 8, 16, 32, 64, 128, 256))
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float", "float16", "float32", "half"))
    parser.add_argument("--scheduling-policy", choices=("fcfs", "priority"))
    parser.add_argument("--gpu-memory-utilization", type=float)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    parser.add_argument("--trust-remote-code", action=argparse.BooleanOptionalAction)
    parser.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction)
    return parser


@dataclass
class Engine:
    asked: argparse.Namespace
    free: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    waiting: int = 0

    async def complete(self, _: web.Request) -> web.Response:
        if self.running < self.asked.max_num_seqs:
            self.running += 1
        else:
            self.waiting += 1
        await self.free.wait()
        return web.json_response({"object": "text_completion", "choices": [{"text": "yes", "index": 0}]})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def metrics(self, _: web.Request) -> web.Response:
        labels = f'engine="0",model_name="{self.asked.served_model_name}"'
        config = f'block_size="{self.asked.block_size}",cache_dtype="auto",engine="0",num_gpu_blocks="{GPU_BLOCKS}"'
        lines = [
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{{{labels}}} {self.running:.1f}",
            f"vllm:num_requests_waiting{{{labels}}} {self.waiting:.1f}",
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {self.waiting:.1f}',
            f"vllm:kv_cache_usage_perc{{{labels}}} {self.running * BLOCKS_EACH / GPU_BLOCKS}",
            f'vllm:cache_config_info{{{config},sliding_window="None",user_specified_block_size="True"}} 1.0',
            f'vllm:request_prompt_tokens_bucket{{{labels},le="+Inf"}} 2.0',
            f"vllm:request_prompt_tokens_count{{{labels}}} 2.0",
            f"vllm:request_prompt_tokens_sum{{{labels}}} 128.0",
        ]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")


async def main(asked: argparse.Namespace, address: str, port: int) -> None:
    engine, app = Engine(asked), web.Application()
    app.router.add_get("/health", engine.health)
    app.router.add_get("/metrics", engine.metrics)
    app.router.add_get("/version", engine.version)
    app.router.add_post("/v1/completions", engine.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, address, port).start()
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while (line := await loop.run_in_executor(None, sys.stdin.readline)) != "":
        if line.strip() == "go":
            engine.free.set()
    await runner.cleanup()


if __name__ == "__main__":
    given = flags().parse_args()
    where, _, number = os.environ["VLLM_STAND_IN"].rpartition(":")
    asyncio.run(main(given, where, int(number)))
