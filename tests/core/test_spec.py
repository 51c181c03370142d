import numpy as np
import pytest

from srl.core.errors import SpecError
from srl.core.spec import Field, Spec, spec_of

SPEC = Spec(
    (
        Field("obs", (4,), "float32"),
        Field("team", (), "bool", "env"),
        Field("n", (), "int64", "head"),
    )
)


def test_spec_to_json_is_canonical():
    assert SPEC.to_json() == (
        '[{"name":"obs","shape":[4],"dtype":"float32","per":"lane","stack":1},'
        '{"name":"team","shape":[],"dtype":"bool","per":"env","stack":1},'
        '{"name":"n","shape":[],"dtype":"int64","per":"head","stack":1}]'
    )


def test_spec_from_json_gives_back_the_spec_and_its_digest():
    again = Spec.from_json(SPEC.to_json().encode())
    assert again == SPEC
    assert again.digest() == SPEC.digest()
    assert len(SPEC.digest()) == 8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "7",
        "null",
        b"\xff\xfe",
        '["obs"]',
        '{"a": 1}',
        '[{"name":"obs"}]',
        '[{"name":"obs","shape":4,"dtype":"float32","per":"lane","stack":1}]',
        '[{"name":"obs","shape":["x"],"dtype":"float32","per":"lane","stack":1}]',
        '[{"name":"obs","shape":[4],"dtype":"quaternion","per":"lane","stack":1}]',
    ],
)
def test_spec_from_json_of_garbage_is_refused(text):
    with pytest.raises(SpecError, match="not the text of a Spec"):
        Spec.from_json(text)


def test_spec_with_a_name_twice_is_refused():
    with pytest.raises(SpecError, match="'obs' twice"):
        SPEC + Spec((Field("obs", (), "int8"),))


def test_difference_of_equal_specs_is_none():
    assert SPEC.difference(Spec.from_json(SPEC.to_json())) is None


def test_difference_names_the_field_that_changed():
    other = Spec((SPEC.fields[0], Field("team", (2,), "bool", "env"), SPEC.fields[2]))
    said = SPEC.difference(other)
    assert said == "field 'team' is bool[] a env here and 'team' bool[2] a env there"
    assert SPEC.digest() != other.digest()


def test_difference_names_the_field_one_side_lacks():
    shorter = Spec(SPEC.fields[:2])
    assert SPEC.difference(shorter) == "field 'n' exists only here"
    assert shorter.difference(SPEC) == "field 'n' exists only there"


def test_spec_looks_fields_up_by_name():
    assert SPEC["team"].per == "env"
    assert "team" in SPEC
    assert "absent" not in SPEC
    assert SPEC.names == ("obs", "team", "n")
    with pytest.raises(KeyError):
        SPEC["absent"]


def test_spec_of_arrays_takes_them_whole():
    spec = spec_of({"x": np.zeros((2, 3), np.uint8)})
    assert spec == Spec((Field("x", (2, 3), "uint8", "head"),))


def test_field_nbytes_counts_one_element():
    assert Field("x", (2, 3), "float64").nbytes == 48
    assert Field("x", (), "int16").nbytes == 2


@pytest.mark.parametrize(
    "text",
    [
        '[{"name":"x","shape":[1e400],"dtype":"float32","per":"lane","stack":1}]',
        '[{"name":"x","shape":[1],"dtype":"(1,f4","per":"lane","stack":1}]',
        "[" * 100_000,
        '[{"name":"x","shape":[-1],"dtype":"float32","per":"lane","stack":1}]',
        '[{"name":"x","shape":[1],"dtype":"object","per":"lane","stack":1}]',
        '[{"name":"x","shape":[1],"dtype":"float32","per":"moon"}]',
    ],
)
def test_from_json_refuses_hostile_text(text):
    with pytest.raises(SpecError):
        Spec.from_json(text)
