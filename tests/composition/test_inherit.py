from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from gym.composition.inherit import Inheritance, merge

keys = st.sampled_from("abcd")
leaves = st.none() | st.integers() | st.text("xyz", max_size=3) | st.lists(st.integers(), max_size=2)
trees = st.dictionaries(
    keys, st.recursive(leaves, lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=8)
)


def _maps_meet_lists(left: object, right: object) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return any(_maps_meet_lists(left[key], right[key]) for key in left.keys() & right.keys())
    return {type(left), type(right)} == {dict, list}


@given(trees, trees)
def test_merge_is_hydras_own(template: dict, own: dict) -> None:
    assume(not _maps_meet_lists(template, own))  # Hydra refuses these
    hydras = OmegaConf.to_container(OmegaConf.merge(OmegaConf.create(template), OmegaConf.create(own)))
    assert merge(template, own) == hydras


@given(trees, trees, trees)
def test_chains_are_merges_in_order(a: dict, b: dict, c: dict) -> None:
    config = {"a": a, "b": {"_inherit_from": "a", **b}, "c": {"_inherit_from": "b", **c}}
    resolved = Inheritance(config, (), lambda _key: "").resolve()
    assert resolved == {"a": a, "b": merge(a, b), "c": merge(merge(a, b), c)}


@given(trees, trees)
def test_nothing_given_is_changed(template: dict, own: dict) -> None:
    before = (repr(template), repr(own))
    merge(template, own)
    assert (repr(template), repr(own)) == before
