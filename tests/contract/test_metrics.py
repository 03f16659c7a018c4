"""A metrics page is one load sample, or an error that names the figure: never a guess, never zero for nothing."""

import pytest

from pinrail_contract import metrics
from pinrail_contract.errors import SampleError
from pinrail_contract.runtime import UNSAID, Runtime

DIGEST = "sha256:" + "a" * 64
PAGE = """\
# HELP vllm:num_requests_running Requests that run.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m",engine="0"} 3.0
vllm:num_requests_waiting{model_name="m",engine="0"} 2.0
vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.5
vllm:cache_config_info{model_name="m",block_size="16",num_gpu_blocks="1000"} 1.0
pinrail_waiting_blocks{model_name="m"} 40.0
pinrail_max_num_seqs{model_name="m"} 8.0
pinrail_model_manifest_info{digest="DIGEST",engine_version="0.1.0",verification="verified"} 1.0
""".replace("DIGEST", DIGEST)


def test_a_page_of_ours() -> None:
    sample = metrics.parse(PAGE)
    assert sample == metrics.LoadSample(
        running=3, waiting=2, kv_usage=0.5, kv_blocks=1000, waiting_blocks=40.0, max_num_seqs=8
    )
    assert sample.used_blocks == 500
    assert metrics.digest_of(metrics.read(PAGE)) == DIGEST


def test_a_replica_says_which_engine_it_is_and_in_what_it_computes() -> None:
    assert metrics.runtime_of(metrics.read(PAGE)) == Runtime(engine_version="0.1.0"), "an older engine says no more"
    page = PAGE.replace('engine_version="0.1.0"', 'engine_version="0.2.0",backend="native",weight_dtype="int8"')
    assert metrics.runtime_of(metrics.read(page)) == Runtime(
        engine_version="0.2.0", backend="native", weight_dtype="int8"
    )
    assert metrics.runtime_of(metrics.read("")) == UNSAID


def test_files_are_verified_whatever_engine_serves_them() -> None:
    assert metrics.digest_of(metrics.read(PAGE.replace('"verified"', f'"{metrics.ENGINE_DIFFERS}"'))) == DIGEST


def test_a_page_of_vllm_has_its_queue_estimated_from_the_mean_prompt() -> None:
    page = "\n".join(line for line in PAGE.splitlines() if not line.startswith("pinrail"))
    page += "\nvllm:request_prompt_tokens_sum 3200.0\nvllm:request_prompt_tokens_count 10.0\n"
    assert metrics.parse(page).waiting_blocks == 2 * 20
    assert metrics.parse(page).max_num_seqs == 0
    assert metrics.digest_of(metrics.read(page)) == ""


def test_before_any_prompt_has_finished_each_is_one_block() -> None:
    page = "\n".join(line for line in PAGE.splitlines() if not line.startswith("pinrail"))
    assert metrics.parse(page).waiting_blocks == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('running{model_name="m",engine="0"} 3.0', 'running{model_name="m"} NaN', "want a finite number"),
        ('waiting{model_name="m",engine="0"} 2.0', "waiting -1", "got -1"),
        ('perc{model_name="m",engine="0"} 0.5', "perc +Inf", "want a finite number"),
        ('perc{model_name="m",engine="0"} 0.5', "perc 1.5", "want 0 to 1"),
        ('perc{model_name="m",engine="0"} 0.5', "perc lots", "got 'lots', want a number"),
        ('vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.5\n', "", "stands 0 times"),
        ('block_size="16"', 'block_size="0"', "block_size: got '0'"),
        ('num_gpu_blocks="1000"', 'num_gpu_blocks="None"', "num_gpu_blocks: got 'None'"),
        ('num_gpu_blocks="1000"', 'num_gpu_blocks="\u00b2"', "num_gpu_blocks: got '\u00b2'"),
        ('num_gpu_blocks="1000"', f'num_gpu_blocks="{"9" * 5000}"', "num_gpu_blocks: got '999"),
        ("# HELP", "vllm:num_requests_running 1\n# HELP", "stands 2 times on the page, want once"),
    ],
)
def test_a_figure_that_cannot_be_is_an_error(old: str, new: str, message: str) -> None:
    assert old in PAGE
    with pytest.raises(SampleError) as caught:
        metrics.parse(PAGE.replace(old, new, 1))
    assert message in str(caught.value)


@pytest.mark.parametrize("page", ["", "<html>", "\x00\xff", "a b c d e\n" * 10])
def test_a_page_of_something_else_is_an_error(page: str) -> None:
    with pytest.raises(SampleError):
        metrics.parse(page)


@pytest.mark.parametrize(
    ("old", "new", "digest"),
    [
        ('"verified"', '"mismatched"', metrics.FILES_DIFFER),
        (',verification="verified"', "", ""),
        (DIGEST, "sha256:abc", ""),
        (DIGEST, "x" * 5000, ""),
    ],
)
def test_only_files_that_were_found_right_count_as_verified(old: str, new: str, digest: str) -> None:
    assert old in PAGE
    assert metrics.digest_of(metrics.read(PAGE.replace(old, new))) == digest
