"""Launch lines of real SGLang servers, as its releases' parsers accept them."""

from pathlib import Path

import pytest

from draftbench.config import Method, SglangEngine
from draftbench.errors import ConfigError
from draftbench.servers.base import Launch
from draftbench.servers.launch import fingerprint
from draftbench.servers.sglang import build_sglang_launch, cuda_graph_sizes
from draftbench.servers.sglang_flags import find_flag_table, flag_tables

AR = Method(algorithm="ar")
DFLASH = Method(algorithm="dflash")
DDTREE = Method(algorithm="ddtree", budget=32)
RELEASES = ["0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"]


def make_engine(**values: object) -> SglangEngine:
    return SglangEngine.model_validate({"kind": "sglang", "version": "0.5.17"} | values)


def build(engine: SglangEngine, method: Method = AR, *, tp: int = 1, port: int = 30100) -> Launch:
    drafter = None if method.algorithm == "ar" else Path("/models/drafter")
    return build_sglang_launch(engine, method, Path("/models/target"), drafter, tp=tp, port=port, seed=7)


def options(launch: Launch) -> dict[str, str]:
    """Each option with its values joined; a flag has none."""
    found: dict[str, str] = {}
    name = ""
    for part in launch.argv[3:]:
        if part.startswith("--"):
            name = part
            found[name] = ""
        else:
            found[name] = f"{found[name]} {part}".strip()
    return found


@pytest.mark.parametrize("version", [*RELEASES, *(f"{release}+ddtree" for release in RELEASES)])
@pytest.mark.parametrize("method", [AR, DFLASH, DDTREE], ids=lambda method: method.algorithm)
def test_every_option_is_known_to_the_release(version: str, method: Method) -> None:
    engine = make_engine(version=version, context_length=4096, radix_cache=False)
    known = find_flag_table(version).options
    assert [name for name in options(build(engine, method)) if name[2:] not in known] == []


SETTINGS = {
    "dtype": "float16",
    "attention_backend": "flashinfer",
    "page_size": 16,
    "max_running_requests": 6,
    "mem_fraction_static": 0.5,
    "context_length": 4096,
    "radix_cache": False,
}


def test_every_setting_of_a_campaign_reaches_the_server_and_is_looked_at_in_its_answer() -> None:
    launch = build(make_engine(**SETTINGS), Method(algorithm="ddtree", block_size=9, budget=5), tp=4)
    given = options(launch)
    del given["--nccl-port"]  # free ones, by chance
    assert given == {
        "--model-path": "/models/target",
        "--served-model-name": "target",
        "--dtype": "float16",
        "--host": "127.0.0.1",
        "--port": "30100",
        "--tp-size": "4",
        "--attention-backend": "flashinfer",
        "--sampling-backend": "pytorch",
        "--grammar-backend": "none",
        "--page-size": "16",
        "--max-running-requests": "6",
        "--mem-fraction-static": "0.5",
        "--cuda-graph-bs-decode": "1 2 4 6",
        "--random-seed": "7",
        "--stream-interval": "1",
        "--decode-log-interval": "40",
        "--enable-cache-report": "",
        "--skip-server-warmup": "",
        "--context-length": "4096",
        "--disable-radix-cache": "",
        "--speculative-algorithm": "DDTREE_OOT",
        "--speculative-dflash-block-size": "9",
        "--speculative-num-draft-tokens": "6",
        "--speculative-draft-model-path": "/models/drafter",
        "--speculative-draft-attention-backend": "flashinfer",
    }
    assert launch.expected == {
        "model_path": "/models/target",
        "served_model_name": "target",
        "dtype": "float16",
        "attention_backend": "flashinfer",
        "page_size": 16,
        "disable_radix_cache": True,
        "tp_size": 4,
        "random_seed": 7,
        "version": "0.5.17",
        "speculative_algorithm": "DDTREE_OOT",
        "speculative_draft_model_path": "/models/drafter",
        "speculative_dflash_block_size": 9,
        "speculative_num_draft_tokens": 6,
    }


def test_the_cache_of_prefixes_and_the_context_are_sglangs_own_unless_the_campaign_says_otherwise() -> None:
    launch = build(make_engine())
    assert not {"--disable-radix-cache", "--context-length"} & options(launch).keys()
    assert launch.expected["disable_radix_cache"] is False


def test_arms_differ_in_nothing_but_their_drafts() -> None:
    engine = make_engine()
    arms = [options(build(engine, method)) for method in (AR, DFLASH, DDTREE)]
    common = [{k: v for k, v in arm.items() if "speculative" not in k and k != "--nccl-port"} for arm in arms]
    assert common[0] == common[1] == common[2]
    assert not any("speculative" in name for name in arms[0])


@pytest.mark.parametrize(
    "option",
    [
        "--attention-backend",
        "--sampling-backend",
        "--page-size",
        "--max-running-requests",
        "--cuda-graph-bs-decode",
        "--random-seed",
    ],
)
def test_what_sglang_would_choose_by_algorithm_is_given(option: str) -> None:
    assert options(build(make_engine()))[option]


def test_a_tree_of_the_plugin_is_verified_with_its_root() -> None:
    given = options(build(make_engine(), DDTREE))
    assert given["--speculative-algorithm"] == "DDTREE_OOT"
    assert given["--speculative-num-draft-tokens"] == "33"
    assert given["--speculative-dflash-block-size"] == "16"


def test_a_fork_takes_its_own_tree_options() -> None:
    extra = {"speculative-ddtree-topk": 4, "speculative-ddtree-allow-hybrid-unsafe": True}
    engine = make_engine(version="0.5.20+ddtree", extra_args=extra)
    given = options(build(engine, DDTREE))
    assert given["--speculative-algorithm"] == "DDTREE"
    assert given["--speculative-ddtree-budget"] == "32"
    assert given["--speculative-ddtree-topk"] == "4"
    assert given["--speculative-ddtree-allow-hybrid-unsafe"] == ""
    assert not any("ddtree" in name for name in options(build(engine, DFLASH)))


def test_speculative_extras_do_not_reach_the_autoregressive_arm() -> None:
    engine = make_engine(
        extra_args={"speculative-draft-window-size": 512, "disable-prefill-cuda-graph": True}
    )
    assert "--speculative-draft-window-size" not in options(build(engine, AR))
    assert options(build(engine, DFLASH))["--speculative-draft-window-size"] == "512"
    assert options(build(engine, AR))["--disable-prefill-cuda-graph"] == ""


def test_an_extra_that_is_switched_off_is_left_out() -> None:
    engine = make_engine(extra_args={"disable-prefill-cuda-graph": False})
    assert "--disable-prefill-cuda-graph" not in options(build(engine))


def test_every_start_has_its_own_nccl_port() -> None:
    given = options(build(make_engine()))
    assert given["--port"] == "30100"
    assert 1024 <= int(given["--nccl-port"]) <= 65535
    assert given["--nccl-port"] != given["--port"]


def test_the_fingerprint_of_a_launch_is_reproducible() -> None:
    assert build(make_engine(), DFLASH, port=0) == build(make_engine(), DFLASH, port=0)


def test_identity_expects_model_drafter_tp_and_algorithm() -> None:
    expected = build(make_engine(), DFLASH, tp=4).expected
    assert expected["model_path"] == "/models/target"
    assert expected["speculative_draft_model_path"] == "/models/drafter"
    assert expected["speculative_algorithm"] == "DFLASH"
    assert expected["tp_size"] == 4
    assert expected["version"] == "0.5.17"
    assert build(make_engine()).expected["speculative_algorithm"] is None


def test_a_forks_version_is_not_compared() -> None:
    assert "version" not in build(make_engine(version="0.5.20+ddtree"), DDTREE).expected


def test_an_unknown_version_is_one_sentence() -> None:
    with pytest.raises(
        ConfigError, match=r"engine\.version: expected an SGLang release from 0\.5\.17 to 0\.5\.23"
    ):
        build(make_engine(version="0.4.9"))


def test_an_option_that_the_release_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SGLang 0\.5\.20 has no option --cuda-graph-max-bs;"):
        build(make_engine(version="0.5.20", extra_args={"cuda-graph-max-bs": 4}))


def test_an_extra_may_not_replace_a_pinned_option() -> None:
    with pytest.raises(ConfigError, match="--page-size is set by the pipeline"):
        build(make_engine(extra_args={"page-size": 16}))


def test_simulated_accept_lengths_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="SGLANG_SIMULATE_ACC_LEN=3"):
        build(make_engine(environment={"SGLANG_SIMULATE_ACC_LEN": "3"}))
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_METHOD", "multinomial")
    with pytest.raises(ConfigError, match="SGLANG_SIMULATE_ACC_METHOD"):
        build(make_engine())


def test_the_environment_of_the_host_reaches_the_server() -> None:
    launch = build(make_engine(environment={"NCCL_P2P_DISABLE": "1", "TOKENIZERS_PARALLELISM": "true"}))
    assert launch.environment == {
        "NCCL_P2P_DISABLE": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "true",
    }


def test_another_environment_is_another_launch() -> None:
    launches = [build(make_engine(environment=e), port=0) for e in ({}, {"NCCL_P2P_DISABLE": "1"})]
    assert len({fingerprint(launch) for launch in launches}) == 2


@pytest.mark.parametrize(("limit", "sizes"), [(1, [1]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_graphs_are_captured_up_to_the_largest_batch(limit: int, sizes: list[int]) -> None:
    assert cuda_graph_sizes(limit) == sizes


def test_renamed_options_are_told_apart_by_release() -> None:
    tables = flag_tables()
    assert "mamba-scheduler-strategy" in tables["0.5.19"].options
    assert "mamba-scheduler-strategy" not in tables["0.5.20"].options
