"""LSTM and RNN against one step at a time in float64, and what lasts from forward to forward."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net
from numpy.testing import assert_allclose, assert_array_equal

from pycaffe_lite import ModelError, device

T, N, H = 4, 3, 5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, cont, w, b, wh, *, static=0.0, h=None, c=None):
    """h of each step, the last h and c; `static` is added to every step's gates."""
    size = wh.shape[1]
    h = np.zeros((x.shape[1], size)) if h is None else h[0]
    c = np.zeros_like(h) if c is None else c[0]
    out = []
    for t in range(x.shape[0]):
        goes_on = cont[t].reshape(-1, 1)
        gates = x[t].reshape(x.shape[1], -1) @ w.T + b + static + (goes_on * h) @ wh.T
        i, f, o, g = np.split(gates, 4, axis=1)
        c = goes_on * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    return np.array(out), h[None], c[None]


def rnn(x, cont, w, b, wh, wo, bo, *, static=0.0, h=None):
    """o of each step, the last h."""
    h = np.zeros((x.shape[1], wh.shape[1])) if h is None else h[0]
    out = []
    for t in range(x.shape[0]):
        before = cont[t].reshape(-1, 1) * h
        h = np.tanh(x[t].reshape(x.shape[1], -1) @ w.T + b + static + before @ wh.T)
        out.append(np.tanh(h @ wo.T + bo))
    return np.array(out), h[None]


def plain(kind):
    step = lstm if kind == "LSTM" else rnn
    return lambda x, cont, *params: step(x, cont, *params)[0]


def with_static(kind):
    step = lstm if kind == "LSTM" else rnn

    def expect(x, cont, xs, w, b, ws, *params):
        static = xs.reshape(xs.shape[0], -1) @ ws.T
        return step(x, cont, w, b, *params, static=static)[0]

    return expect


def snippet(kind, more=""):
    return f"type: '{kind}' recurrent_param {{ num_output: {H} {more} }}"


@pytest.fixture
def values(rng):
    """x (T, N, 2, 7), x_static (N, 6), h0 and c0, and cont that starts all streams at step 0."""
    cont = (rng.random((T, N)) < 0.6).astype(float)
    cont[0], cont[2, 0], cont[3, 1] = 0, 0.3, 0.75
    return {
        "x": rng.normal(size=(T, N, 2, 7)),
        "cont": cont,
        "static": rng.normal(size=(N, 6)),
        "h": rng.normal(size=(1, N, H)),
        "c": rng.normal(size=(1, N, H)),
    }


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
@pytest.mark.parametrize("steps", [1, T])
def test_recurrence(ops, values, kind, steps):
    inputs = [values["x"][:steps], values["cont"][:steps]]
    check_layer(
        ops,
        snippet(kind),
        bottoms=[v.shape for v in inputs],
        expect=plain(kind),
        values=inputs,
        gradients=[0],
    )


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
@pytest.mark.parametrize(
    "cont", [[[0, 0]] * 3, [[0, 0], [1, 1], [1, 1]], [[0, 0], [0, 1]]], ids=["no", "all", "last"]
)
def test_gradients_of_streams_that_go_on_or_start_anew(ops, rng, kind, cont):
    x = rng.normal(size=(len(cont), 2, 5, 4))
    check_layer(
        ops,
        f"type: '{kind}' recurrent_param {{ num_output: 7 }}",
        bottoms=[x.shape, np.shape(cont)],
        expect=plain(kind),
        values=[x, np.array(cont)],
        gradients=[0],
    )


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_a_static_input_joins_every_step(ops, values, kind):
    inputs = [values["x"], values["cont"], values["static"]]
    check_layer(
        ops,
        snippet(kind),
        bottoms=[v.shape for v in inputs],
        expect=with_static(kind),
        values=inputs,
        gradients=[0, 2],
    )


def exposed(kind, steps=T, shapes=None, more=""):
    states = ["h0", "c0"] if kind == "LSTM" else ["h0"]
    shapes = shapes or {"x": (steps, N, 7), "cont": (steps, N)} | {s: (1, N, H) for s in states}
    layers = ["force_backward: true"]
    layers += [
        f"layer {{ name: '{k}' type: 'Input' top: '{k}' input_param {{ shape {{"
        f" dim: {list(shape)} }} }} }}"
        for k, shape in shapes.items()
    ]
    bottoms = " ".join(f"bottom: '{k}'" for k in shapes)
    tops = " ".join(f"top: '{s.upper()}'" for s in states)
    layers.append(
        f"layer {{ name: 'it' {bottoms} top: 'y' {tops} {snippet(kind, 'expose_hidden: true')} }}"
    )
    return make_net("\n".join(layers))


def fill(net, seed=3):
    draw = np.random.default_rng(seed)
    for blob in net.params["it"]:
        blob.data[...] = draw.normal(size=blob.shape)
    return [blob.data.astype(np.float64) for blob in net.params["it"]]


# https://github.com/lutzroeder/netron/issues/306, https://github.com/BVLC/caffe/pull/3948
@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_exposed_states_are_bottoms_and_tops(on_ops, values, kind):
    net = exposed(kind)
    params = fill(net)
    x, cont = values["x"].reshape(T, N, 14)[..., :7], values["cont"].copy()
    cont[0] = [1, 0, 0.5]
    given = {"x": x, "cont": cont, "h0": values["h"]}
    if kind == "LSTM":
        given["c0"] = values["c"]
        y, h, c = lstm(x, cont, *params, h=values["h"], c=values["c"])
    else:
        (y, h), c = rnn(x, cont, *params, h=values["h"]), None
    for _ in range(2):  # nothing lasts from one forward to the next
        out = net.forward(**given)
        assert_allclose(out["y"], y, rtol=1e-4, atol=1e-5)
        assert_allclose(out["H0"], h, rtol=1e-4, atol=1e-5)
        if c is not None:
            assert_allclose(out["C0"], c, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_exposed_starting_states_get_their_gradient(on_ops, values, kind):
    """That of y; what comes from the final states is not used."""
    net = exposed(kind)
    params = fill(net)
    cont = values["cont"].copy()
    cont[0] = [1, 0, 0.5]
    given = {"x": values["x"].reshape(T, N, 14)[..., :7], "cont": cont, "h0": values["h"]}
    if kind == "LSTM":
        given["c0"] = values["c"]
    out = net.forward(**given)
    draw = np.random.default_rng(8)
    diffs = {name: draw.normal(size=value.shape) for name, value in out.items()}
    grads = net.backward(**diffs)

    def objective(**moved):
        given_now = given | moved
        starts = {k[0]: v for k, v in given_now.items() if k in ("h0", "c0")}
        step = lstm if kind == "LSTM" else rnn
        y = step(given_now["x"], given_now["cont"], *params, **starts)[0]
        return (y * diffs["y"]).sum()

    for name in set(given) - {"cont"}:
        u = draw.normal(size=given[name].shape)
        up, down = (objective(**{name: given[name] + s * 1e-5 * u}) for s in (1, -1))
        assert_allclose((grads[name] * u).sum(), (up - down) / 2e-5, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_static_input_and_exposed_states_together(on_ops, values, kind):
    states = {"h0": (1, N, H), "c0": (1, N, H)} if kind == "LSTM" else {"h0": (1, N, H)}
    net = exposed(kind, shapes={"x": (T, N, 7), "cont": (T, N), "xs": (N, 6), **states})
    w, b, ws, *params = fill(net)
    given = {"x": values["x"].reshape(T, N, 14)[..., :7], "cont": np.ones((T, N))}
    given |= {"xs": values["static"]} | {k: values[k[0]] for k in states}
    starts = {k[0]: values[k[0]] for k in states}
    step = lstm if kind == "LSTM" else rnn
    want = step(given["x"], given["cont"], w, b, *params, static=values["static"] @ ws.T, **starts)
    out = net.forward(**given)
    for got, wanted in zip((out[k] for k in ("y", "H0", "C0") if k in out), want, strict=True):
        assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


# ---- what lasts --------------------------------------------------------------------------------


def net_of(kind, steps, streams=N, more="weight_filler { type: 'gaussian' std: 0.2 }"):
    return make_net(
        f"""force_backward: true
        input: 'x' input_shape {{ dim: [{steps}, {streams}, 7, 2] }}
        input: 'cont' input_shape {{ dim: [{steps}, {streams}] }}
        layer {{ name: 'it' bottom: 'x' bottom: 'cont' top: 'y' {snippet(kind, more)} }}"""
    )


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_steps_one_by_one_are_the_steps_in_one_forward(on_ops, rng, kind):
    x, cont = rng.normal(size=(T, N, 7, 2)), np.ones((T, N))
    cont[0] = 0
    whole, single = net_of(kind, T), net_of(kind, 1)
    single.share_with(whole)
    y = whole.forward(x=x, cont=cont)["y"].copy()
    for t in range(T):
        out = single.forward(x=x[t : t + 1], cont=cont[t : t + 1])
        assert_allclose(out["y"][0], y[t], rtol=1e-5, atol=1e-6)
    apart = whole.forward(x=x, cont=np.zeros((T, N)))["y"]
    assert_allclose(apart[0], y[0], rtol=1e-6, atol=1e-6)
    for t in range(1, T):
        assert (apart[t] != y[t]).any(axis=1).all()


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_the_state_lasts_over_a_switch_of_the_mode(ops, rng, kind):
    x = rng.normal(size=(3 * T, N, 7, 2))
    net = net_of(kind, T)
    params = fill(net)
    want = plain(kind)(x, np.ones((3 * T, N)), *params)
    for k, here in enumerate((False, True, False)):
        part = slice(k * T, (k + 1) * T)
        with device.pretend(ops if here else device.current()):
            y = net.forward(x=x[part], cont=np.ones((T, N)))["y"]
        assert_allclose(y, want[part], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_another_number_of_streams_starts_from_zeros(on_ops, rng, kind):
    net = net_of(kind, T)
    params = fill(net)
    for streams in (N, 2, N, N + 3):
        x, cont = rng.normal(size=(T, streams, 7, 2)), np.ones((T, streams))
        net.blobs["x"].reshape(*x.shape)
        net.blobs["cont"].reshape(*cont.shape)
        net.reshape()
        net.reshape()
        y = net.forward(x=x, cont=cont)["y"]
        assert_allclose(y, plain(kind)(x, cont, *params), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_gradients_end_at_the_start_of_a_forward(on_ops, rng, kind):
    """The state carried over counts in the gradient of the weights, as a constant."""
    x, cont = rng.normal(size=(2 * T, N, 7, 2)), np.ones((2 * T, N))
    whole = net_of(kind, T)
    params = fill(whole)
    for part in (slice(0, T), slice(T, 2 * T)):
        whole.forward(x=x[part], cont=cont[part])
    dy = rng.normal(size=(T, N, H))
    whole.backward(y=dy)
    step = lstm if kind == "LSTM" else rnn
    starts = dict(zip("hc", step(x[:T], cont[:T], *params)[1:], strict=False))

    for k, w in enumerate(params):
        u = rng.normal(size=w.shape)
        sums = []
        for sign in (1, -1):
            moved = [p + sign * 1e-5 * u if i == k else p for i, p in enumerate(params)]
            sums.append((step(x[T:], cont[T:], *moved, **starts)[0] * dy).sum())
        got = float((whole.params["it"][k].diff * u).sum())
        assert_allclose(got, (sums[0] - sums[1]) / 2e-5, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_no_streams(on_ops, kind):
    net = net_of(kind, T, streams=0)
    assert net.forward()["y"].shape == (T, 0, H)
    assert net.backward()["x"].shape == (T, 0, 7, 2)
    for blob in net.params["it"]:
        assert_array_equal(blob.diff, 0)


# ---- shapes and errors -------------------------------------------------------------------------


def test_parameters_come_in_the_order_of_the_original():
    static = {"x": (T, N, 7), "cont": (T, N), "xs": (N, 2, 3)}
    states = {"h0": (1, N, H), "c0": (1, N, H)}
    assert [b.shape for b in exposed("LSTM", shapes=static | states).params["it"]] == [
        (20, 7), (20,), (20, 6), (20, 5),
    ]  # fmt: skip
    states.pop("c0")
    assert [b.shape for b in exposed("RNN", shapes=static | states).params["it"]] == [
        (5, 7), (5,), (5, 6), (5, 5), (5, 5), (5,),
    ]  # fmt: skip
    for kind, shapes in (("LSTM", [(20, 14), (20,), (20, 5)]), ("RNN", [(5, 14), (5,), (5, 5)])):
        assert [b.shape for b in net_of(kind, T).params["it"]][:3] == shapes


def test_fillers_are_for_weights_and_for_biases():
    more = "weight_filler { type: 'constant' value: 2 } bias_filler { type: 'constant' value: 3 }"
    for kind in ("LSTM", "RNN"):
        for blob in net_of(kind, T, more=more).params["it"]:
            assert_array_equal(blob.data, 2 if len(blob.shape) == 2 else 3)


REFUSED = {
    "no output": ([(4, 3, 7), (4, 3)], 1, "num_output: 0", "num_output must be > 0, got 0"),
    "axes": ([(4,), (4, 3)], 1, "", "bottom 0 must have at least 2 axes, .* got 1"),
    "no steps": ([(0, 3, 7), (0, 3)], 1, "", "time steps must be > 0, got 0"),
    "cont": ([(4, 3, 7), (3, 4)], 1, "", r"cont, bottom 1, has shape `3 4 \(12\)`.* `4 3 \(12\)`"),
    "static": (
        [(4, 3, 7), (4, 3), (2, 6)],
        1,
        "",
        r"static input, bottom 2, has shape `2 6 \(12\)`, expected 3 streams of 6 values",
    ),
    "states": (
        [(4, 3, 7), (4, 3), (1, 3, 5), (1, 3, 6)],
        3,
        "expose_hidden: true",
        r"hidden state, bottom 3, has shape `1 3 6 \(18\)`, expected `1 3 5 \(15\)`",
    ),
    "bottoms": (
        [(4, 3, 7), (4, 3), (1, 3, 5)],
        3,
        "expose_hidden: true",
        "with expose_hidden: true LSTM takes 4 or 5 bottom blobs, got 3",
    ),
    "tops": ([(4, 3, 7), (4, 3)], 2, "", "with expose_hidden: false LSTM produces 1 .*, got 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_name_the_layer_and_both_numbers(case):
    shapes, tops, param, message = REFUSED[case]
    inputs = " ".join(
        f"input: 'x{k}' input_shape {{ dim: {list(shape)} }}" for k, shape in enumerate(shapes)
    )
    ends = " ".join(f"bottom: 'x{k}'" for k in range(len(shapes)))
    ends += " ".join(f" top: 'y{k}'" for k in range(tops))
    param = param if "num_output" in param else param + " num_output: 5"
    with pytest.raises(ModelError, match=rf"layer 'it' \(LSTM\): .*{message}"):
        make_net(
            f"{inputs} layer {{ name: 'it' type: 'LSTM' {ends} recurrent_param {{ {param} }} }}"
        )


def test_steps_and_size_may_not_change():
    net = net_of("LSTM", T)
    net.blobs["x"].reshape(T + 1, N, 7, 2)
    with pytest.raises(ModelError, match="time steps may not change: 5 vs. 4"):
        net.forward()
    net.blobs["x"].reshape(T, N, 7, 3)
    with pytest.raises(ModelError, match=r"bottom `4 3 7 3 \(252\)` vs. 14 values"):
        net.forward()


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_cont_gets_no_gradient(kind):
    assert not net_of(kind, T).layer_dict["it"].allow_force_backward(1)
    net = make_net(
        f"""input: 'x' input_shape {{ dim: [{T}, {N}, 7] }}
        layer {{ name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'a'
          inner_product_param {{ num_output: 1 axis: 2 }} }}
        layer {{ name: 'cont' type: 'InnerProduct' bottom: 'a' top: 'cont'
          inner_product_param {{ num_output: {N} }} }}
        layer {{ name: 'it' bottom: 'x' bottom: 'cont' top: 'y' loss_weight: 1 {snippet(kind)} }}"""
    )
    net.forward()
    with pytest.raises(ModelError, match=rf"layer 'it' \({kind}\): cannot backpropagate to cont"):
        net.backward()
