"""Which backend computes, and why. Pure."""

from collections.abc import Callable

from pinrail_contract.launch import BackendName, Quantization

from ..errors import LaunchError

_TORCH = "torch, which comes with `pip install 'pinrail[gpu]'`"
_KERNELS = "the CPU kernels, which an installation with a C++ compiler builds"


def choose_backend(
    wanted: BackendName,
    quantization: Quantization,
    *,
    torch: bool,
    accelerator: bool,
    native_problem: Callable[[], str],
) -> tuple[BackendName, str]:
    """The backend and the reason, for the log.

    | wanted | torch | accelerator | native can | chosen      |
    |--------|-------|-------------|------------|-------------|
    | torch  | yes   | -           | -          | torch       |
    | torch  | no    | -           | -          | LaunchError |
    | native | -     | -           | yes        | native      |
    | native | -     | -           | no         | LaunchError |
    | auto   | yes   | yes         | -          | torch       |
    | auto   | -     | no          | yes        | native      |
    | auto   | yes   | no          | no         | torch       |
    | auto   | no    | no          | no         | LaunchError |

    Where torch is chosen, weights cannot be quantised: that is a LaunchError too.

    Args:
        torch: It is installed.
        accelerator: Torch can compute on one.
        native_problem: Why the native kernels cannot compute this network here, '' where they can. Asked only where it
            matters, because it opens their library.
    """
    if wanted is BackendName.NATIVE:
        return _native(native_problem())
    if wanted is BackendName.TORCH:
        return _torch(torch, quantization, "--backend asks for it")
    if torch and accelerator:
        return _torch(torch, quantization, "there is an accelerator")
    problem = native_problem()
    if not problem:
        return BackendName.NATIVE, "there is no accelerator"
    if not torch:
        raise LaunchError("--backend", "auto", f"one that works here: {_TORCH}; or {_KERNELS} ({problem})")
    return _torch(torch, quantization, f"there is no accelerator, and the CPU kernels cannot: {problem}")


def _native(problem: str) -> tuple[BackendName, str]:
    if problem:
        raise LaunchError("--backend", "native", f"one that works here: {problem}; {_KERNELS}; {_TORCH}")
    return BackendName.NATIVE, "--backend asks for it"


def _torch(installed: bool, quantization: Quantization, reason: str) -> tuple[BackendName, str]:
    if not installed:
        raise LaunchError("--backend", "torch", f"one that works here: {_TORCH}, is not installed")
    if quantization is not Quantization.NONE:
        wanted = f"none on the torch backend ({reason}); only --backend=native keeps weights so"
        raise LaunchError("--quantization", quantization, wanted)
    return BackendName.TORCH, reason
