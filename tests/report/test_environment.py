"""The environment as the report prints it."""

from synthetic import Shape, campaign_values, make_result

from draftbench.config import Campaign, cells
from draftbench.files import canonical_json, sha256_text
from draftbench.report.environment import (
    MAX_LISTED_HASHES,
    difference_table,
    flatten,
    main_facts,
    same_environment,
    same_machine,
    shared_and_different,
)


def hashes(number):
    return {f"model-{index:05d}.safetensors": sha256_text(str(index)) for index in range(number)}


def test_few_hashes_stand_each_and_many_become_one_hash_of_their_list():
    few, many = hashes(MAX_LISTED_HASHES), hashes(MAX_LISTED_HASHES + 1)
    assert dict(flatten({"target_sha256": few})) == {f"target_sha256.{name}": few[name] for name in few}
    digest = sha256_text(canonical_json(many))
    assert dict(flatten({"target_sha256": many})) == {
        "target_sha256": f"{MAX_LISTED_HASHES + 1} files, SHA-256 of the list: {digest}"
    }


def test_one_other_file_changes_the_hash_of_the_list():
    many = hashes(9)
    assert list(flatten({"x": many})) != list(flatten({"x": many | {"model-00003.safetensors": "0" * 64}}))


def test_a_long_mapping_of_other_values_is_not_folded():
    versions = {f"package-{index}": f"1.{index}" for index in range(9)}
    assert len(list(flatten({"packages": versions}))) == 9


def test_services_with_the_same_values_are_one_group():
    table = difference_table(
        [
            ["boot_id", "one", "a, b, c"],
            ["boot_id", "two", "d, c"],
            ["gpus", "2", "b, d"],
            ["gpus", "not recorded", "a, c"],
        ]
    )
    assert table.groups == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    assert [row[2] for row in table.rows] == ["1, 2, 3", "3, 4", "2, 4", "1, 3"]
    same = difference_table([["boot_id", "one", "a, b, e"], ["boot_id", "two", "c, d"]])
    assert same.groups == [(1, "a, b, e"), (2, "c, d")]
    assert same.rows == [("boot_id", "one", "1"), ("boot_id", "two", "2")]


def test_equal_gpus_are_counted_and_different_ones_listed():
    settings = {"power.limit": "700.00", "ecc": "Enabled"}
    assert dict(flatten({"gpus": ["A, 80 GB"] * 8})) == {"gpus": "8 \u00d7 A, 80 GB"}
    assert dict(flatten({"gpus": ["A, 80 GB", "B, 40 GB"]})) == {"gpus": "A, 80 GB; B, 40 GB"}
    assert dict(flatten({"gpu_settings": [settings]})) == {"gpu_settings": "power.limit 700.00, ecc Enabled"}
    assert dict(flatten({"gpu_indices": [0, 1]})) == {"gpu_indices": "0, 1"}


def test_the_setup_names_facts_in_words_in_a_fixed_order():
    shared = [["git.is_dirty", "False"], ["gpus", "A, 80 GB"], ["memory_bytes", str(2**37)], ["boot_id", "b"]]
    different = [["driver", "one", "1.0"], ["driver", "other", "2.0"]]
    assert main_facts(shared, different) == [
        ["GPUs", "A, 80 GB"],
        ["GPU driver", "differs between services, see the appendix"],
        ["Memory", "128\u00a0GiB"],
        ["Uncommitted changes", "no"],
    ]


def test_settings_of_gpus_have_units_where_the_setup_names_them():
    said = "persistence_mode Enabled, power.limit 700.00, clocks.max.sm 1980, other 1"
    assert main_facts([["gpu_settings", said]], []) == [
        ["GPU settings", "persistence mode Enabled, power limit 700.00 W, highest SM clock 1980 MHz, other 1"]
    ]


def with_environment(boot="b", **facts):
    """A result of one boot of a machine with these facts in its environment."""
    campaign = Campaign.model_validate(campaign_values(budgets=()))
    result = make_result(campaign, next(iter(cells(campaign))), Shape())
    environment = result.identity.environment | facts
    identity = result.identity.model_copy(update={"boot_id": boot, "environment": environment})
    return result.model_copy(update={"identity": identity})


def on_machine(boot, uuids=None):
    return with_environment(boot, gpu_uuids=uuids)


def test_a_machine_is_known_by_its_gpus_and_without_any_by_its_boot():
    assert same_machine(on_machine("a", ["GPU-1"]), on_machine("b", ["GPU-1"]))
    assert not same_machine(on_machine("a", ["GPU-1"]), on_machine("a", ["GPU-2"]))
    assert same_machine(on_machine("a"), on_machine("a"))
    assert not same_machine(on_machine("a"), on_machine("b"))


def test_a_service_that_was_started_on_two_machines_stands_beside_both():
    _, different = shared_and_different([on_machine("a", ["GPU-1"]), on_machine("b", ["GPU-2"])])
    assert different == [["gpu_uuids", "GPU-1", "tp1-ar"], ["gpu_uuids", "GPU-2", "tp1-ar"]]


def with_engine_packages(**versions):
    return with_environment(engine_packages=versions)


def test_a_plugin_that_only_trees_need_is_no_other_environment():
    plain = with_engine_packages(sglang="0.5.17", **{"sglang-ddtree": None})
    assert same_environment(plain, with_engine_packages(sglang="0.5.17", **{"sglang-ddtree": "0.1.0"}))
    assert not same_environment(plain, with_engine_packages(sglang="0.5.18", **{"sglang-ddtree": None}))


def test_variables_that_steer_the_engine_are_compared_where_both_have_a_record():
    with_p2p, without = (with_environment(engine_variables={"NCCL_P2P_DISABLE": flag}) for flag in "01")
    assert same_environment(with_p2p, with_p2p)
    assert not same_environment(with_p2p, without)
    assert same_environment(with_environment(), without)
