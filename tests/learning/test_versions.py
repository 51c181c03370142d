"""Versions on disk: what is kept and found, and what becomes of damaged files and indexes."""

import multiprocessing
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.core.errors import CheckpointError, ConfigError
from srl.learning.versions import (
    COLUMNS,
    Version,
    VersionStore,
    parse_where,
    read_weights,
    write_weights,
)


def weights(version):
    return {
        "layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3) + version,
        "count": np.array(version, np.int64),
        "columns": np.asfortranarray(np.eye(3) * version)[:, ::-1],
    }


def add(store, version, value, policy="main"):
    made = Version(
        policy=policy,
        version=version,
        env_steps=100 * version,
        seconds=0.5 * version,
        eval_return=value,
        eval_std=1.0,
        eval_episodes=20,
    )
    written = write_weights(store.folder, made, weights(version))
    return store.add(written)


@pytest.fixture
def store(tmp_path):
    made = VersionStore(tmp_path / "versions")
    for version, value in ((0, 1.0), (3, 9.0), (4, 9.0), (7, 5.0), (9, 7.0)):
        add(made, version, value)
    return made


def numbers(versions):
    return [version.version for version in versions]


def test_weights_come_back_as_they_were(store):
    for version in store.newest("main", 100):
        for name, array in store.weights(version).items():
            np.testing.assert_array_equal(array, weights(version.version)[name])
            assert array.dtype == weights(version.version)[name].dtype


def test_newest_tagged_and_get(store):
    assert numbers(store.newest("main", 2)) == [9, 7]
    assert store.tags("main") == {"best": 3, "eval": 9}  # of equals the first is the best
    assert store.tagged("best", policy="main").eval_return == 9.0
    assert store.get("main", 7).env_steps == 700
    assert store.policies() == ["main"]
    assert store.newest("other", 5) == []
    with pytest.raises(ConfigError, match="version 8 of policy 'main' is not kept"):
        store.get("main", 8)
    with pytest.raises(ConfigError, match=r"'bset': did you mean 'best'\?"):
        store.tagged("bset", policy="main")


def test_add_says_whether_it_is_the_best(store):
    assert not add(store, 10, 9.0)
    assert add(store, 11, 9.5)
    assert add(store, 2, -1.0, policy="other"), "the best of its own policy"
    assert store.tags("other") == {"best": 2, "eval": 2}


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("eval_return > 6", [9, 4, 3]),
        ("eval_return>=9 and version!=3", [4]),
        ("env_steps < 4e2 AND seconds >= .5", [3]),
        ("version = 7", [7]),
        ("version == 7.0", [7]),
        ("eval_return < -1", []),
    ],
)
def test_where_finds(store, expression, found):
    assert numbers(store.where(expression, policy="main")) == found
    assert numbers(store.where(expression, policy="main", limit=1)) == found[:1]


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "eval_return",
        "eval_return > ",
        "eval_return > 1 or 1 = 1",
        "eval_return > 1; DROP TABLE versions",
        "eval_return > (SELECT 1)",
        "sha256 > 1",
        "policy = 'main'",
        "1 = 1",
        "eval_return > 1 and",
        "eval_return > nan",
        "eval_return > 0x10",
        "eval_return > ٣",
        "rowid > 0",
    ],
)
def test_where_refuses(store, expression):
    with pytest.raises(ConfigError, match="column"):
        store.where(expression, policy="main")
    assert len(store.newest("main", 100)) == 5


def test_where_names_the_nearest_column(store):
    with pytest.raises(ConfigError, match="'eval_retrun': did you mean 'eval_return'"):
        store.where("eval_retrun > 1", policy="main")


@given(st.text())
def test_where_never_passes_a_text_on(text):
    """Whatever is typed, the SQL is made of known words alone."""
    try:
        sql, values = parse_where(text)
    except ConfigError:
        return
    for part in sql.split(" AND "):
        column, comparison, mark = part.split(" ")
        assert column in COLUMNS
        assert comparison in ("<", "<=", ">", ">=", "=", "==", "!=")
        assert mark == "?"
    assert all(isinstance(value, float) for value in values)


def test_prune_keeps_the_newest_and_those_with_a_tag(store):
    store.tag("main", 0, "first")
    assert store.prune("main", 1) == [4, 7]
    assert numbers(store.newest("main", 100)) == [9, 3, 0]
    assert sorted(p.name for p in store.folder.glob("*.safetensors")) == [
        f"main-0000000{n}.safetensors" for n in (0, 3, 9)
    ]


def test_roll_back_forgets_what_is_learned_again_but_not_what_has_a_tag(store):
    assert store.roll_back("main", 4) == [7]
    assert numbers(store.newest("main", 100)) == [9, 4, 3, 0]


def test_tag_moves_and_is_checked(store):
    store.tag("main", 4, "mine")
    store.tag("main", 7, "mine")
    assert store.tags("main")["mine"] == 7
    with pytest.raises(ConfigError, match="version 8 of policy 'main' is not kept"):
        store.tag("main", 8, "mine")
    for name in ("best", "eval", "latest"):
        with pytest.raises(ConfigError, match="is set by the run itself"):
            store.tag("main", 4, name)
    for name in ("", "7", "a b", "../x", "x" * 65, "a'; DROP TABLE tags"):
        with pytest.raises(ConfigError, match="a tag is a letter"):
            store.tag("main", 4, name)


def test_store_that_is_not_there_says_so(tmp_path):
    store = VersionStore(tmp_path / "versions")
    assert not store.exists
    with pytest.raises(ConfigError, match=r"no versions in .* --evaluation.count 1"):
        store.newest("main", 1)
    assert not store.folder.exists(), "looking makes nothing"


@pytest.mark.parametrize("size", [0, 4, 40, -1])
def test_truncated_file_is_refused(store, size):
    path = store.folder / "main-00000007.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"main-00000007.safetensors is missing or truncated"):
        store.weights(store.get("main", 7))


def test_every_changed_byte_is_refused(store):
    path = store.folder / "main-00000007.safetensors"
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in {len(sound) - 1, *rng.integers(len(sound), size=200).tolist()}:
        broken = bytearray(sound)
        broken[place] ^= 0x10
        path.write_bytes(broken)
        try:
            found = store.weights(store.get("main", 7))
        except CheckpointError:
            continue
        for name, array in weights(7).items():  # a byte of the header that means nothing here
            np.testing.assert_array_equal(found[name], array)


def test_foreign_files_are_refused(tmp_path):
    import safetensors.numpy

    path = tmp_path / "x.safetensors"
    for metadata in (None, {"srl": "[]"}, {"srl": "{"}, {"srl": '{"policy": 1}'}):
        safetensors.numpy.save_file({"a": np.zeros(1)}, path, metadata=metadata)
        with pytest.raises(CheckpointError, match="holds no version of SRL"):
            read_weights(path)


def test_file_of_another_version_is_refused(store):
    other = store.folder / "main-00000004.safetensors"
    (store.folder / "main-00000007.safetensors").write_bytes(other.read_bytes())
    with pytest.raises(CheckpointError, match="holds version 4"):
        store.weights(store.get("main", 7))


def test_missing_index_is_made_again_from_the_files(store):
    before = store.newest("main", 100)
    (store.folder / "index.sqlite").unlink()
    assert store.newest("main", 100) == before
    assert store.tags("main")["best"] == 3


def test_reader_leaves_alone_what_a_run_is_writing(store):
    (store.folder / "index.sqlite").unlink()
    unfinished = store.folder / ".main-00000010.safetensors.writing"
    unfinished.write_bytes(b"half")
    assert numbers(store.newest("main", 1)) == [9]
    assert unfinished.exists()


def test_damaged_index_says_what_to_do(store):
    (store.folder / "index.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(CheckpointError, match="remove it, it is made again"):
        store.newest("main", 1)
    (store.folder / "index.sqlite").unlink()
    assert numbers(store.newest("main", 1)) == [9]


def test_repair_makes_index_and_files_agree(store):
    (store.folder / "main-00000003.safetensors").unlink()
    (store.folder / "main-00000004.safetensors").write_bytes(b"half")
    (store.folder / ".main-00000010.safetensors.writing").write_bytes(b"half")
    rewritten = Version(policy="main", version=7, eval_return=6.0)
    write_weights(store.folder, rewritten, weights(70))  # killed before it was indexed
    notes = store.repair()
    assert any("main-00000004.safetensors is missing or truncated" in note for note in notes)
    assert any("version 3 of 'main' is gone" in note for note in notes)
    assert numbers(store.newest("main", 100)) == [9, 7, 0]
    assert store.tags("main")["best"] == 9
    assert store.get("main", 7).eval_return == 6.0
    assert store.weights(store.get("main", 7))["count"] == 70
    assert not list(store.folder.glob(".*"))
    assert store.repair() == [notes[0]], "a damaged file stays, and is named again"


def test_policy_names_make_no_paths(tmp_path):
    store = VersionStore(tmp_path / "versions")
    add(store, 1, 1.0, policy="../../red")
    assert [p.parent for p in tmp_path.rglob("*.safetensors")] == [store.folder]
    assert store.weights(store.tagged("best", policy="../../red"))["count"] == 1


def test_index_that_is_busy_for_too_long_is_an_error_in_words(store, monkeypatch):
    monkeypatch.setattr("srl.learning.versions._BUSY_SECONDS", 0.1)
    other = sqlite3.connect(store.folder / "index.sqlite", isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CheckpointError, match="cannot be opened now: database is locked"):
            store.tag("main", 4, "mine")
    finally:
        other.close()


def test_readers_and_taggers_do_not_disturb_the_writer(store):
    store.tag("main", 9, "held")
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_tag_often, args=(store.folder, n)) for n in range(2)]
    for other in others:
        other.start()
    for version in range(10, 60):
        add(store, version, float(version))
        store.prune("main", 3)
    for other in others:
        other.join(60)
        assert other.exitcode == 0
    kept = numbers(store.newest("main", 100))
    assert {59, 58, 57} <= set(kept)
    assert {"mine0": 9, "mine1": 9}.items() <= store.tags("main").items()
    assert 9 in kept


def _tag_often(folder: Path, number: int) -> None:
    store = VersionStore(folder)
    for _ in range(30):
        store.tag("main", 9, f"mine{number}")
        assert store.tagged(f"mine{number}", policy="main").version == 9
        store.newest("main", 5)


def test_numbers_that_no_index_can_hold_are_refused(store):
    for ask in (
        lambda: store.get("main", 2**63),
        lambda: store.tag("main", 10**30, "huge"),
        lambda: store.newest("main", 2**63),
    ):
        with pytest.raises(ConfigError, match="no versions beyond"):
            ask()
    assert numbers(store.newest("main", 1)) == [9]
