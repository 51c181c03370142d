"""What a name in a configuration stands for: `module:Object` or `path/to/file.py:Object`."""

import hashlib
import importlib
import importlib.util
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from srl.core.errors import ConfigError

_FOLDERS: set[str] = set()
"""Folders of files that were named: what lies there is found again by its path."""


def load_object(reference: str) -> Any:
    """The object that `module:Object` or `file.py:Object` names.

    A file's path is relative to the current directory. Raises ConfigError where the text is not
    such a reference, or names a module or an object that is not there or cannot be imported.
    """
    where, colon, path = reference.rpartition(":")
    if not (where and colon and path):
        raise ConfigError(
            f"{reference!r} names no object: write 'module:Object' or 'file.py:Object'"
        )
    found: Any = _load_file(where) if where.endswith(".py") else _load_module(where)
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigError(f"{where!r} has no {path!r}{nearest(name, dir(found))}")
        found = getattr(found, name)
    return found


def absolute_reference(reference: str) -> str:
    """`file.py:Object` with the whole path of the file; any other name as it is."""
    where, colon, name = reference.rpartition(":")
    return f"{Path(where).resolve()}:{name}" if colon and where.endswith(".py") else reference


def nearest(name: str, known: list[str]) -> str:
    """A hint to append to an error: the known name most like `name`; empty where none is."""
    close = get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise _import_failed(name, error) from error
        raise ConfigError(
            f"there is no module {error.name!r}: is it installed, or in a folder Python imports from?"
        ) from error
    except Exception as error:  # user code may raise anything while it is imported
        raise _import_failed(name, error) from error


def _load_file(file: str) -> ModuleType:
    """Import a file once, under a name made of its absolute path."""
    path = Path(file).resolve()
    digest = hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()
    name = f"srl_file_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"there is no file {file!r} in {Path.cwd()}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _FOLDERS.add(str(path.parent))
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # as for a script: a file may import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # user code may raise anything while it is imported
        del sys.modules[name]
        raise _import_failed(file, error) from error
    return module


def _import_failed(name: str, error: Exception) -> ConfigError:
    return ConfigError(f"importing {name!r} failed: {type(error).__name__}: {error}")


def reference_of(cls: type) -> str:
    """The text by which `load_object` finds a class again, in any process started here."""
    file = getattr(sys.modules[cls.__module__], "__file__", None)
    if file is not None and str(Path(file).parent) in _FOLDERS:
        return f"{file}:{cls.__qualname__}"
    return f"{cls.__module__}:{cls.__qualname__}"
