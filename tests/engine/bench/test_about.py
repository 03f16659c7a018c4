"""What an engine says of itself, whatever its metrics page tells."""

from pinrail_contract.launch import Dtype, LaunchSpec
from pinrail_engine.bench.about import engine_of
from pinrail_engine.metrics import NOTHING, Computing, Identity, Metrics

SPEC = LaunchSpec(model_dir="d", manifest="m", dtype=Dtype.FLOAT32)


def test_the_page_of_the_engine_itself() -> None:
    identity = Identity(
        model_name="m",
        digest="sha256:0",
        engine_version="1.2",
        verification="verified",
        block_size=16,
        max_num_seqs=4,
        computing=Computing(backend="fake", instructions="none", dtype="float32", quantization="none", threads=1),
    )
    metrics = Metrics(identity)
    metrics.laid_out(300)
    told = engine_of(metrics.page(NOTHING).decode(), SPEC, 2)
    assert told["version"] == "1.2"
    assert (told["kv_blocks"], told["block_size"], told["threads"]) == ("300", "16", "1")
    assert not told.keys() & {"model_name", "engine", "engine_version", "num_gpu_blocks"}


def test_what_the_engine_tells_goes_before_what_its_flags_ask_for() -> None:
    assert engine_of("", SPEC, 2)["backend"] == "auto"
    page = 'pinrail_engine_info{backend="native",instructions="avx2",engine="0"} 1\nother_info{dtype="int8"} 1\n'
    told = engine_of(page, SPEC, 2)
    assert (told["backend"], told["instructions"], told["dtype"]) == ("native", "avx2", "float32")
