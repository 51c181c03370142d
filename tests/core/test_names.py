import os.path
import sys

import pytest

from srl.core.errors import ConfigError
from srl.core.names import load_object


def test_load_object_of_module_finds_attribute_and_nested_attribute():
    assert load_object("os.path:join") is os.path.join
    assert load_object("pathlib:Path.cwd")() == load_object("pathlib:Path").cwd()


@pytest.mark.parametrize("reference", ["", "CartPole", ":Thing", "os.path:"])
def test_load_object_of_text_that_is_no_reference_says_the_form(reference):
    with pytest.raises(ConfigError, match="write 'module:Object'"):
        load_object(reference)


def test_load_object_of_missing_module_names_it():
    with pytest.raises(ConfigError, match="no module 'nowhere_at_all'"):
        load_object("nowhere_at_all.part:Thing")


def test_load_object_of_missing_attribute_offers_the_nearest():
    with pytest.raises(ConfigError, match=r"no 'joim'.*did you mean 'join'"):
        load_object("os.path:joim")


def test_load_object_of_file_imports_it_once_under_one_name(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("class Thing:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    thing = load_object("mine.py:Thing")
    assert thing is load_object(f"{tmp_path}/mine.py:Thing")
    assert sys.modules[thing.__module__].Thing is thing


def test_load_object_of_files_of_one_name_keeps_them_apart(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(f"WHERE = {folder!r}\n")
    assert load_object(f"{tmp_path}/a/same.py:WHERE") == "a"
    assert load_object(f"{tmp_path}/b/same.py:WHERE") == "b"


def test_load_object_of_missing_file_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no file 'absent\.py'"):
        load_object("absent.py:Thing")


def test_load_object_of_file_that_raises_chains_and_can_be_tried_again(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("raise RuntimeError('half done')\n")
    with pytest.raises(ConfigError, match="half done") as caught:
        load_object(f"{path}:Thing")
    assert isinstance(caught.value.__cause__, RuntimeError)
    path.write_text("Thing = 1 + 1  # another length, so that no cached bytecode is used\n")
    assert load_object(f"{path}:Thing") == 2


def test_load_object_of_module_whose_own_import_is_missing_says_so(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import absent_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"importing 'needs_more' failed.*absent_dependency"):
        load_object("needs_more:Thing")
