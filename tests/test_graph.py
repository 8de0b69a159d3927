"""What net does a model file describe? Input fields, include and exclude rules, splits."""

from __future__ import annotations

import pytest

from pycaffe_lite import TEST, TRAIN, ModelError, graph
from pycaffe_lite.prototxt import parse_net


def wiring(spec):
    """Each layer as "name: bottoms -> tops"."""
    return [
        f"{layer.name}: {' '.join(layer.bottom)} -> {' '.join(layer.top)}" for layer in spec.layer
    ]


def layers(*entries):
    """A net from "name: bottoms -> tops" entries, whatever follows a | put into the layer."""
    text = []
    for entry in entries:
        wires, _, rest = entry.partition("|")
        name, _, blobs = wires.partition(":")
        bottoms, _, tops = blobs.partition("->")
        ends = [f"bottom: '{b}'" for b in bottoms.split()] + [f"top: '{t}'" for t in tops.split()]
        text.append(f"layer {{ name: '{name.strip()}' {' '.join(ends)} {rest} }}")
    return parse_net("\n".join(text))


# ---- old input fields --------------------------------------------------------------------------

INPUT_DIMS = "input: 'b' input: 'a' input_dim: [2, 3, 4, 5, 6, 7, 8, 9]"
INPUT_SHAPES = "input: 'b' input: 'a' input_shape { dim: [2, 3, 4, 5] } input_shape { dim: [6, 7] }"


def shapes_of(layer):
    return [list(shape.dim) for shape in layer.input_param.shape]


@pytest.mark.parametrize(
    ("text", "second"), [(INPUT_DIMS, [6, 7, 8, 9]), (INPUT_SHAPES, [6, 7])], ids=["dim", "shape"]
)
def test_input_fields_become_the_first_layer(text, second):
    new = graph.upgrade(parse_net(text + " layer { name: 'r' bottom: 'a' top: 'r' }"))
    assert wiring(new) == ["input:  -> b a", "r: a -> r"]
    assert new.layer[0].type == "Input"
    assert shapes_of(new.layer[0]) == [[2, 3, 4, 5], second]
    assert not new.input
    assert not new.input_dim
    assert not new.input_shape


def test_upgrading_twice_changes_nothing():
    once = graph.upgrade(parse_net(INPUT_DIMS))
    assert graph.upgrade(once) == once


def test_upgrading_leaves_the_given_message_alone():
    spec = parse_net(INPUT_DIMS)
    graph.upgrade(spec)
    assert spec == parse_net(INPUT_DIMS)


def test_inputs_without_any_shape_are_dropped():
    new = graph.upgrade(parse_net("input: 'x' layer { name: 'd' top: 'd' }"))
    assert wiring(new) == ["d:  -> d"]
    assert not new.input


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("input: 'x' input_dim: [2, 3, 4]", "1 inputs need 4 input_dim values, got 3"),
        ("input: 'x' input: 'y' input_dim: [2, 3, 4, 5]", "2 inputs need 8 .* got 4"),
        ("input: 'x' input: 'y' input_shape { dim: 2 }", "2 inputs but 1 input_shape"),
        ("input: 'x' input_dim: [2, 3, 4, 5] input_shape { dim: 2 }", "input_dim; not both"),
    ],
)
def test_shapes_that_do_not_match_the_inputs(text, message):
    with pytest.raises(ModelError, match=message):
        graph.upgrade(parse_net(text))


# ---- include and exclude -----------------------------------------------------------------------

RULES = [
    # phase, level, stages, rules, is the layer kept?
    (TEST, 0, "", "include { stage: 'a' }", False),
    (TEST, 0, "", "exclude { stage: 'a' }", True),
    (TEST, 0, "a", "include { stage: 'a' }", True),
    (TEST, 0, "a", "exclude { stage: 'a' }", False),
    (TEST, 0, "a", "include { stage: 'a' stage: 'b' }", False),
    (TEST, 0, "a", "exclude { stage: 'a' stage: 'b' }", True),
    (TEST, 0, "a", "include { stage: 'b' } include { stage: 'a' }", True),
    (TEST, 0, "a", "exclude { stage: 'b' } exclude { stage: 'a' }", False),
    (TEST, 0, "ab", "include { stage: 'a' stage: 'b' }", True),
    (TEST, 0, "a", "include { not_stage: 'b' }", True),
    (TEST, 0, "a", "include { not_stage: 'a' }", False),
    (TEST, 0, "ab", "include { stage: 'a' not_stage: 'b' }", False),
    (TEST, 0, "a", "exclude { not_stage: 'a' }", True),
    (TEST, 0, "", "include { min_level: 3 }", False),
    (TEST, 0, "", "include { max_level: -3 }", False),
    (TEST, 0, "", "include { min_level: 0 }", True),
    (TEST, 0, "", "include { max_level: 0 }", True),
    (TEST, 7, "", "include { min_level: 3 }", True),
    (TEST, -7, "", "include { max_level: -3 }", True),
    (TEST, 7, "", "exclude { min_level: 3 }", False),
    (TEST, 2, "", "include { min_level: 3 max_level: 5 }", False),
    (TRAIN, 4, "", "include { min_level: 2 phase: TRAIN }", True),
    (TRAIN, 4, "", "include { min_level: 2 phase: TEST }", False),
    (TRAIN, 2, "", "include { min_level: 2 phase: TRAIN } include { phase: TEST }", True),
    (TEST, 2, "", "include { min_level: 2 phase: TRAIN } include { phase: TEST }", True),
    (TRAIN, 4, "", "exclude { min_level: 2 phase: TRAIN }", False),
    (TRAIN, 4, "", "exclude { min_level: 2 phase: TEST }", True),
    (TRAIN, 0, "", "include { phase: TEST }", False),
    (TEST, 0, "", "", True),
    (TEST, 3, "x", "include { }", True),
    (TEST, 3, "x", "exclude { }", False),
]


# https://github.com/BVLC/caffe/pull/3863
@pytest.mark.parametrize(("phase", "level", "stages", "rules", "kept"), RULES)
def test_rules(phase, level, stages, rules, kept):
    spec = layers("first: -> f", f"ruled: -> r | {rules}")
    new = graph.select_layers(spec, phase, level, list(stages))
    assert wiring(new) == ["first:  -> f", "ruled:  -> r"][: 2 if kept else 1]
    assert graph.select_layers(new, phase, level) == new, "selecting again changes nothing"


def test_the_state_is_recorded_and_stages_are_added_to_those_of_the_file():
    spec = parse_net(
        "state { phase: TRAIN level: 9 stage: 'file' }"
        " layer { name: 'a' include { stage: 'file' stage: 'call' } }"
    )
    new = graph.select_layers(spec, TEST, 2, ["call"])
    assert [layer.name for layer in new.layer] == ["a"]
    assert (new.state.phase, new.state.level) == (TEST, 2)
    assert list(new.state.stage) == ["file", "call"]


def test_rules_stay_in_the_layers_kept():
    new = graph.select_layers(layers("a: -> a | include { phase: TRAIN }"), TRAIN)
    assert new.layer[0].include[0].phase == TRAIN


def test_selecting_does_not_look_at_bottoms():
    new = graph.select_layers(layers("a: -> a | include { phase: TRAIN }", "b: a -> b"), TEST)
    assert wiring(new) == ["b: a -> b"]


def test_rules_of_both_kinds_are_refused():
    spec = layers("a: -> a | include { phase: TRAIN } exclude { phase: TEST }")
    with pytest.raises(ModelError, match="'a'.*include rules or exclude rules; not both") as error:
        graph.select_layers(spec, TEST)
    assert error.value.layer == "a"


# ---- splits ------------------------------------------------------------------------------------


def test_nothing_is_inserted_where_each_blob_has_one_reader_at_most():
    spec = layers(
        "data: -> data label",
        "ip: data -> ip",
        "relu: ip -> ip",
        "drop: ip -> ip",
        "split: ip -> s t",
        "loss: s t ->",
    )
    assert graph.insert_splits(spec) == spec


def test_splits_have_the_names_that_caffe_gives_them():
    spec = layers(
        "data: -> data label",
        "innerprod1: data -> innerprod1",
        "innerprod2: data -> innerprod2",
        "innerprod3: data -> innerprod3",
        "loss1: innerprod1 innerprod2 ->",
        "loss2: innerprod2 innerprod3 ->",
    )
    split, second = "data_data_0_split", "innerprod2_innerprod2_0_split"
    assert wiring(graph.insert_splits(spec)) == [
        "data:  -> data label",
        f"{split}: data -> {split}_0 {split}_1 {split}_2",
        f"innerprod1: {split}_0 -> innerprod1",
        f"innerprod2: {split}_1 -> innerprod2",
        f"{second}: innerprod2 -> {second}_0 {second}_1",
        f"innerprod3: {split}_2 -> innerprod3",
        f"loss1: innerprod1 {second}_0 -> ",
        f"loss2: {second}_1 innerprod3 -> ",
    ]


def test_both_tops_of_a_layer_are_split_right_behind_it():
    spec = layers("data: -> data label", "a: data label ->", "b: data label ->")
    assert wiring(graph.insert_splits(spec)) == [
        "data:  -> data label",
        "data_data_0_split: data -> data_data_0_split_0 data_data_0_split_1",
        "label_data_1_split: label -> label_data_1_split_0 label_data_1_split_1",
        "a: data_data_0_split_0 label_data_1_split_0 -> ",
        "b: data_data_0_split_1 label_data_1_split_1 -> ",
    ]


def test_one_layer_that_reads_a_blob_twice_gets_two_copies():
    new = graph.insert_splits(layers("in: -> x", "sum: x x -> y"))
    assert wiring(new)[-1] == "sum: x_in_0_split_0 x_in_0_split_1 -> y"


def test_a_split_behind_an_in_place_layer_has_that_layers_name():
    spec = layers(
        "data: -> data",
        "innerprod1: data -> innerprod1",
        "relu1: innerprod1 -> innerprod1",
        "a: innerprod1 -> a",
        "b: innerprod1 -> b",
    )
    split = "innerprod1_relu1_0_split"
    assert wiring(graph.insert_splits(spec))[1:] == [
        "innerprod1: data -> innerprod1",
        "relu1: innerprod1 -> innerprod1",
        f"{split}: innerprod1 -> {split}_0 {split}_1",
        f"a: {split}_0 -> a",
        f"b: {split}_1 -> b",
    ]


def test_a_loss_weight_reads_the_first_copy_and_moves_to_the_split():
    spec = layers("data: -> data", "ip: data -> ip | loss_weight: 2.5", "loss: ip ->")
    new = graph.insert_splits(spec)
    assert wiring(new)[1:] == [
        "ip: data -> ip",
        "ip_ip_0_split: ip -> ip_ip_0_split_0 ip_ip_0_split_1",
        "loss: ip_ip_0_split_1 -> ",
    ]
    assert list(new.layer[2].loss_weight) == [2.5, 0]
    assert not any(new.layer[1].loss_weight)


def test_the_weights_of_other_tops_stay_where_they_are():
    new = graph.insert_splits(layers("p: -> a b | loss_weight: 2 loss_weight: 3", "q: a -> c"))
    assert list(new.layer[0].loss_weight) == [0, 3]
    assert list(new.layer[1].loss_weight) == [2, 0]


def test_a_loss_weight_without_other_readers_needs_no_split():
    spec = layers("data: -> data", "ip: data -> ip | loss_weight: 2.5")
    assert graph.insert_splits(spec) == spec


def test_inserting_twice_changes_nothing():
    spec = layers("in: -> x", "a: x -> a | loss_weight: 2", "b: x a -> b", "c: x x ->")
    once = graph.insert_splits(spec)
    assert len(once.layer) == 6
    assert graph.insert_splits(once) == once


def test_splits_are_written_apart_from_the_given_message():
    spec = layers("in: -> x", "a: x -> a", "b: x -> b")
    graph.insert_splits(spec)
    assert wiring(spec) == ["in:  -> x", "a: x -> a", "b: x -> b"]


def test_unknown_bottom():
    with pytest.raises(
        ModelError, match=r"unknown bottom blob 'dat' \(layer 'a', bottom index 1\)"
    ):
        graph.insert_splits(layers("in: -> data other", "a: other dat -> a"))


def test_a_blob_made_further_down_is_an_unknown_bottom():
    with pytest.raises(ModelError, match="unknown bottom blob 'y'"):
        graph.insert_splits(layers("in: -> x", "a: y -> a", "b: x -> y"))


@pytest.mark.parametrize(
    "entries",
    [
        ("in: -> x", "a: x -> a", "relu: x -> x"),
        ("in: -> x", "relu: x -> x", "a: x -> a", "again: x -> x"),
        ("in: -> x | loss_weight: 1", "relu: x -> x"),
    ],
    ids=["read before", "read between", "weighted"],
)
def test_working_in_place_on_values_that_another_reads(entries):
    with pytest.raises(ModelError, match="'x' produced by multiple sources.*in place") as error:
        graph.insert_splits(layers(*entries))
    assert error.value.layer == entries[-1].partition(":")[0]


def test_a_blob_with_the_name_of_a_split_copy_is_refused():
    spec = layers("in: -> x", "mine: -> x_in_0_split_1", "a: x -> a", "b: x -> b")
    with pytest.raises(ModelError, match="'x_in_0_split_1'.*multiple sources.*rename") as error:
        graph.insert_splits(spec)
    assert error.value.layer == "mine"
