"""The command line of the project's own engine."""

from pathlib import Path

from draftbench.config import EmbeddedEngine, Method
from draftbench.engine.__main__ import _parser
from draftbench.servers.embedded import build_embedded_launch

TARGET, DRAFTER = Path("/models/target"), Path("/models/drafter")
ENGINE = EmbeddedEngine(
    kind="embedded", dtype="float32", device="cuda", max_running_requests=3, context_length=64, num_threads=2
)
COMMON = {
    "model_path": TARGET,
    "host": "127.0.0.1",
    "port": 30100,
    "served_model_name": "target",
    "dtype": "float32",
    "device": "cuda",
    "max_running_requests": 3,
    "context_length": 64,
    "num_threads": 2,
    "random_seed": 7,
}
TREE = {
    "speculative_algorithm": "DDTREE",
    "speculative_draft_model_path": DRAFTER,
    "speculative_dflash_block_size": 9,
    "speculative_ddtree_budget": 5,
}


def read(launch):
    """The settings that the engine is given, as it reads them."""
    assert launch.argv[1:3] == ("-m", "draftbench.engine")
    found = vars(_parser().parse_args(launch.argv[3:]))
    return {name: value for name, value in found.items() if value is not None and name != "log_level"}


def test_every_setting_of_a_campaign_reaches_the_engine():
    method = Method(algorithm="ddtree", block_size=9, budget=5)
    launch = build_embedded_launch(ENGINE, method, TARGET, DRAFTER, port=30100, seed=7)
    assert read(launch) == COMMON | TREE
    paths = {"model_path": str(TARGET), "speculative_draft_model_path": str(DRAFTER)}
    assert launch.expected == TREE | paths


def test_autoregressive_decoding_has_no_drafter():
    launch = build_embedded_launch(ENGINE, Method(algorithm="ar"), TARGET, None, port=30100, seed=7)
    assert read(launch) == COMMON
    assert launch.expected == {"model_path": str(TARGET), "speculative_algorithm": None}
