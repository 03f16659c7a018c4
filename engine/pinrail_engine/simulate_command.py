"""`pinrail simulate engine`: the engine's scheduler under a workload, in simulated time. Needs no model and no device.

The defaults are an 8-billion-parameter Llama 3 on an H100: step times as in `bench.step_times`, and 54 GB of KV cache.
"""

import argparse
from typing import TYPE_CHECKING

from pinrail_contract.command import Command
from pinrail_contract.launch import Policy, Switch
from pinrail_contract.termination import ExitCode

if TYPE_CHECKING:
    from .bench.records import Run
    from .bench.simulator import Setup
    from .bench.workload import Workload

_KV_BLOCKS = 25_600  # of 16 tokens, 2 MiB each
_MAX_MODEL_LEN = 131_072


def _run(argv: list[str]) -> int:
    from .bench.options import Options
    from .bench.output import show

    parser = _parser()
    args = parser.parse_args(argv)
    setups = [_setup(parser, args, policy) for policy in args.policy or [Policy.FCFS]]
    options = Options.of(args)
    workload = options.workload(setups[0].limits.max_model_len)
    show(workload, [_simulate(workload, setup) for setup in setups], options)
    return ExitCode.OK


def _simulate(workload: "Workload", setup: "Setup") -> "Run":
    from .bench.options import RequestBar
    from .bench.simulator import simulate

    progress = RequestBar(setup.limits.policy, len(workload.jobs))
    with progress.bar:
        return simulate(workload, setup, setup.limits.policy, progress)


def _parser() -> argparse.ArgumentParser:
    from .bench import step_times
    from .bench.options import add_flags, checked, integer, number, one_of

    parser = argparse.ArgumentParser(prog="pinrail simulate", description=__doc__, allow_abbrev=False)
    parser.add_argument("what", choices=["engine"], help="engine: one replica's scheduler and KV cache")
    add_flags(parser)
    policy = f"who is served first: {', '.join(Policy)}; give it several times to compare"
    parser.add_argument("--policy", type=one_of(Policy), action="append", metavar="NAME", help=policy)
    parser.add_argument("--max-num-seqs", type=integer(1), default=256, help="requests that run at once")
    parser.add_argument("--max-num-batched-tokens", type=integer(1), default=8192, help="tokens in one step")
    target = "milliseconds that a step should take while texts are continued; 0: no bound"
    parser.add_argument("--target-step-ms", type=number(), default=50.0, help=target)
    parser.add_argument("--max-model-len", type=integer(2), default=0, help="longest prompt plus output, tokens")
    parser.add_argument("--kv-blocks", type=integer(1), default=_KV_BLOCKS, help="blocks of the KV cache")
    parser.add_argument("--block-size", type=integer(1), default=16, help="tokens in one KV block")
    parser.add_argument("--prefix-cache", type=one_of(Switch), default=Switch.ON, metavar="on|off")
    depth = "steps launched before the first one's tokens are known"
    parser.add_argument("--steps-in-flight", type=integer(1), default=1, help=depth)
    parser.add_argument("--host-ms", type=number(), default=0.0, help="milliseconds that planning a step takes")
    times = "a file written by `pinrail bench run --save-step-time`, or five numbers: seconds per step, token, "
    times += "token chosen, cache position read, query-key pair"
    default = step_times.GPU_LIKE
    parser.add_argument("--step-time", type=checked(step_times.parse), default=default, metavar="FILE", help=times)
    return parser


def _setup(parser: argparse.ArgumentParser, args: argparse.Namespace, policy: Policy) -> "Setup":
    from .bench.simulator import VOCAB_SIZE, Setup
    from .core.state import Limits

    room = args.kv_blocks * args.block_size
    if args.max_num_seqs > args.max_num_batched_tokens:
        most = f"at most --max-num-batched-tokens ({args.max_num_batched_tokens})"
        parser.error(f"argument --max-num-seqs: got {args.max_num_seqs}, want {most}")
    if not args.max_model_len <= room >= 2:
        parser.error(f"argument --kv-blocks: got {args.kv_blocks}, want room for --max-model-len and 2 tokens at least")
    return Setup(
        limits=Limits(
            vocab_size=VOCAB_SIZE,
            max_model_len=args.max_model_len or min(_MAX_MODEL_LEN, room),
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            policy=policy,
            target_step=args.target_step_ms / 1e3,
        ),
        kv_blocks=args.kv_blocks,
        block_size=args.block_size,
        step_time=args.step_time,
        prefix_cache=args.prefix_cache is Switch.ON,
        depth=args.steps_in_flight,
        host_time=args.host_ms / 1e3,
        concurrency=args.concurrency,
        seed=args.seed,
    )


command = Command("replay a workload on the scheduler, in simulated time", _run)
