"""A request that repeats another but for the numbers in its JSON is answered as if it were new."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.services.online.http.connection.conftest import Bench
from tests.services.online.http.connection.lines import Line, Played, post
from tests.support.bundles import expected, make_bundle
from tests.support.pairs import make_pair_bundle

# Who leaves at once may have left before its numbers were looked at, or after.
OUTCOMES = (("ok",), ("gone", "invalid_input"), ("internal",), ("deadline_exceeded",))
# Numbers as clients write them, and what is none, or none that fits. The model of `picky`
# refuses what is below zero.
NUMBERS = ["1", "2.5", "0", "-0", "-0.0", "1e2", "1E+2", "25e-1", "16777217", "0.1", "3.4e38",
           "1e-46", "9007199254740993", "18446744073709551616", "123456789012345678901234567890",
           "0.1000000014901161193847656"]  # fmt: skip
ODD = ["NaN", "Infinity", "null", "true", "false", '"1"', '"', "[1]", "{}", "[", "]", "1e400",
       "1e39", "01", "1.", ".5", "+1", "", "-", "1 2", '1],"data":[1', '1],"shape":[1,3', "\x00",
       "\xff", "0x1", "1_0", "\u0661", "nan", "//", "-1"]  # fmt: skip
SPACES = ["", "", " ", "\n", "\t \r\n"]
FRAMES = (
    '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [%d, 4], "data": [%s]}]}',
    '{"inputs":[{"data":[%s],"name":"x","datatype":"FP32","shape":[%d,4]}]}',
    (
        '{"id":"a \\"data\\":[1] b","inputs":[{"name":"x","datatype":"FP32","shape":[%d,4],'
        '"data" :\n[%s] }],"outputs":[{"name":"y"}]} '
    ),
    (
        '{"parameters":{"binary_data_output":true,"priority":1,"timeout":10000000},'
        '"inputs":[{"name":"x","datatype":"FP32","shape":[%d,4],"data":[%s]}]}'
    ),
    '{"inputs":[{"name":"x","datatype":"FP32","shape":[%d,4],"data":[[%s]]}]}',
)


def framed(frame: str, rows: int, values: str) -> bytes:
    """A body."""
    pair = (values, rows) if frame.index("%s") < frame.index("%d") else (rows, values)
    return (frame % pair).encode("latin-1", "replace")


ONE = post(framed(FRAMES[0], 1, "1, 2, 3, 4"))
HEADERS = st.sampled_from(
    ["", "", "", "X-Request-Id: given-1\r\n", "Mlctl-Priority: high\r\n",
     "Accept-Encoding: gzip\r\n", "Content-Type: application/json\r\n"]
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(NUMBERS),
    st.floats(0, 2.0**100, width=32).map(repr),
    st.floats(0, 1e30).map(repr),
)
PLAIN = st.tuples(st.lists(VALUES, min_size=4, max_size=4), st.just(1))
MIXED = st.tuples(
    st.lists(st.one_of(VALUES, VALUES, VALUES, st.sampled_from(ODD)), min_size=3, max_size=5),
    st.integers(1, 2),
)
DOUBLE = st.tuples(st.lists(VALUES, min_size=8, max_size=8), st.just(2))
SEPARATORS = st.tuples(st.sampled_from(SPACES), st.sampled_from(SPACES))


def written(
    frame: str, content: tuple[list[str], int], separator: tuple[str, str], headers: str
) -> bytes:
    """A whole request."""
    before, after = separator
    values, rows = content
    return post(framed(frame, rows, f"{before},{after}".join(values)), headers)


PLAIN_SEPARATOR = st.just(("", " "))
REQUESTS = st.one_of(
    # Mostly what is alike, so that it is read together.
    st.builds(written, st.just(FRAMES[0]), PLAIN, PLAIN_SEPARATOR, st.just("")),
    st.builds(written, st.just(FRAMES[0]), MIXED, SEPARATORS, st.just("")),
    st.builds(written, st.sampled_from(FRAMES), PLAIN | MIXED | DOUBLE, SEPARATORS, HEADERS),
    st.just(ONE.replace(b"Length: ", b"Length: 0")),
)
# For each connection in turn: what it asks, in how many pieces, and whether it leaves then.
TURNS = st.lists(
    st.lists(
        st.tuples(REQUESTS, st.sampled_from([1, 1, 1, 1, 2]), st.integers(0, 12)),
        min_size=4,
        max_size=4,
    ),
    max_size=6,
)


def counted(bench: Bench) -> list[float]:
    """How many requests had each of the outcomes."""
    return [sum(map(bench.counted, outcomes)) for outcomes in OUTCOMES]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=TURNS)
def test_whatever_numbers_come_are_answered_as_if_nothing_was_known(
    picky: Bench, turns: list[Any]
) -> None:
    found = []
    for learns in (False, True):
        before = counted(picky)
        answers = picky.runner.run(Played(picky, ONE, learns=learns).play(turns))
        found.append((answers, [b - a for a, b in zip(before, counted(picky), strict=True)]))
        assert picky.host.inflight.used == 0
    assert found[0] == found[1]


async def learned(bench: Bench, content: bytes) -> Line:
    """A connection that knows `content`."""
    line = Line(bench)
    for repeated in (False, False, True):  # a connection's first is not looked at
        line.protocol.data_received(content)
        assert line.repeated() is repeated
        (answer,) = await line.answer()
        assert answer.startswith(b"HTTP/1.1 200 ")
    return line


@pytest.mark.parametrize("frame", FRAMES[:4])
def test_numbers_of_any_length_are_known(bench: Bench, frame: str) -> None:
    async def main() -> None:
        line = await learned(bench, post(framed(frame, 1, "1,2,3,4")))
        for values in ([5, 6, 7, 8], [0.1, 2e-7, 123456.789, 1e10], [0] * 4):
            line.protocol.data_received(post(framed(frame, 1, json.dumps(values)[1:-1])))
            assert line.repeated()
            (answer,) = await line.answer()
            body = answer.partition(b"\r\n\r\n")[2]
            wanted = expected(np.array([values], np.float32))
            if b"binary_data_size" in body:
                found = np.frombuffer(body[body.rindex(b"}") + 1 :], np.float32)
            else:
                found = np.array(orjson.loads(body)["outputs"][0]["data"], np.float32)
            assert found.tolist() == wanted[0].tolist()
        line.end()

    bench.runner.run(main())


def test_a_body_of_another_length_of_its_length_is_known(bench: Bench) -> None:
    """The declared length takes two, three and four digits."""

    async def main() -> None:
        line = await learned(bench, ONE)
        for spaces in (0, 100, 1000, 3000, 9900, 20000):
            body = framed(FRAMES[0], 1, f"1, 2, 3,{' ' * spaces}4")
            line.protocol.data_received(post(body))
            assert line.repeated()
            assert b"[12.0,14.0,16.0,18.0]" in (await line.answer())[0]
        line.protocol.data_received(post(framed(FRAMES[0], 1, f"1, 2, 3,{' ' * (64 << 10)}4")))
        assert not line.repeated()  # it is read on another thread
        assert b"[12.0,14.0,16.0,18.0]" in (await line.answer())[0]
        line.end()

    bench.runner.run(main())


@pytest.mark.parametrize("begin", [ONE, ONE[:10], ONE[:-1], ONE[:-20]])
def test_what_looks_known_within_another_is_parsed(bench: Bench, begin: bytes) -> None:
    """With it, or after it, comes what is more than the request that is known."""

    async def main() -> None:
        for together in (True, False):
            answers = []
            for line in (await learned(bench, ONE), Line(bench, learns=False)):
                for piece in (begin + ONE,) if together else (begin, ONE):
                    line.protocol.data_received(piece)
                if begin == ONE[:-20]:
                    line.protocol.data_received(b" ")
                answers.append(await line.answer(2 if begin == ONE else 1))
                line.end()
            assert answers[0] == answers[1]

    bench.runner.run(main())


def test_a_wrong_one_costs_its_neighbours_no_answer(bench: Bench) -> None:
    """Counts that are wrong on both sides, so that all together is as much as it should be."""

    async def main() -> None:
        first = await learned(bench, ONE)
        base = type(first.protocol)
        lines = [first, *(Line(bench, base=base) for _ in range(7))]
        for line in lines[1:]:
            for _ in range(2):
                line.protocol.data_received(ONE)
                await line.answer()
        wrong = {2: "1, 2, 3", 3: "1, 2, 3, 4, 5", 5: "1, 2, null, 4", 6: "1, 2, 3, 4, null"}
        for number, line in enumerate(lines):
            values = wrong.get(number, f"{number}, 2, 3, 4")
            line.protocol.data_received(post(framed(FRAMES[0], 1, values)))
            assert line.repeated()
        for number, line in enumerate(lines):
            (answer,) = await line.answer()
            if number in wrong:
                assert answer.startswith(b"HTTP/1.1 400 ")
            else:
                wanted = expected(np.array([[number, 2, 3, 4]], np.float32))
                assert answer.endswith(b'"data":%b}]}' % orjson.dumps(wanted[0].tolist()))
            line.end()
        assert bench.host.inflight.used == 0

    bench.runner.run(main())


def test_a_binary_row_may_have_an_answer_in_json(bench: Bench) -> None:
    rows = np.array([[1, 2, 3, 4]], np.float32)
    size = {"parameters": {"binary_data_size": rows.nbytes}}
    head = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], **size}]})
    content = post(
        head.encode() + rows.tobytes(), f"Inference-Header-Content-Length: {len(head)}\r\n"
    )

    async def main() -> None:
        answers = []
        for line in (await learned(bench, content), Line(bench, learns=False)):
            line.protocol.data_received(content)
            answers.append(await line.answer())
            line.end()
        assert answers[0] == answers[1]
        assert answers[0][0].endswith(b'"data":[12.0,14.0,16.0,18.0]}]}')

    bench.runner.run(main())


def test_what_goes_wrong_unforeseen_is_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        line = await learned(bench, ONE)

        def fail(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr("services.online.http.connection.repeated.read_numbers", fail)
        line.protocol.data_received(ONE)
        assert line.repeated()
        assert (await line.answer())[0].startswith(b"HTTP/1.1 500 ")
        assert bench.host.inflight.used == 0
        line.end()

    bench.runner.run(main())


def test_a_long_answer_that_may_be_packed_goes_the_long_way(tmp_path: Path) -> None:
    wide = Bench(make_bundle(tmp_path / "bundle", features=64), asyncio.new_event_loop)
    tensor = {"name": "x", "datatype": "FP32", "shape": [20, 64], "data": [*range(64)] * 20}
    body = json.dumps({"inputs": [tensor]}).encode()

    async def main() -> None:
        for headers in ("", "Accept-Encoding: gzip\r\n"):
            line = Line(wide)
            for repeated in (False, False, True, True):
                line.protocol.data_received(post(body, headers))
                assert line.repeated() is repeated
                (answer,) = await line.answer()
                assert (b"\r\ncontent-encoding: gzip\r\n" in answer) is bool(headers)
            line.end()

    wide.runner.run(main())
    wide.runner.run(wide.host.stop())
    wide.runner.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(make_pair_bundle(tmp_path_factory.mktemp("pair") / "b"), asyncio.new_event_loop)
    yield found
    found.runner.run(found.host.stop())
    found.runner.close()


def ask_pair(reals: Sequence[str], wholes: Sequence[str], end: str) -> bytes:
    """Both inputs in one request."""
    x = f'{{"name":"x","shape":[1,2],"datatype":"FP32","data":[{",".join(reals)}]}}'
    n = f'{{"name":"n","data":[{",".join(wholes)}],"shape":[1,3],"datatype":"INT32"}}'
    return post(f'{{"inputs":[{x},{n}]{end}}}'.encode("latin-1", "replace"))


PAIR = ask_pair(["1", "2"], ["3", "4", "5"], "")
WHOLES = st.sampled_from(["0", "-0", "7", "-2147483648", "2147483647"])
ODD_WHOLES = st.sampled_from(["2147483648", "1.0", "1e3", "18446744073709551616", "true", *ODD])
PAIRS = st.builds(
    ask_pair,
    st.lists(st.one_of(*[VALUES] * 9, st.sampled_from(ODD)), min_size=2, max_size=2),
    st.lists(st.one_of(*[WHOLES] * 9, ODD_WHOLES), min_size=3, max_size=3),
    st.sampled_from(["", "", ',"outputs":[{"name":"m"},{"name":"y"}]', ',"data":[1]',
                     ',"outputs":[{"name":"m"},{"name":"y","parameters":{"binary_data":true}}]']),
)  # fmt: skip
PAIR_TURNS = st.lists(
    st.lists(st.tuples(PAIRS, st.just(1), st.just(1)), min_size=4, max_size=4), max_size=5
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=PAIR_TURNS)
def test_several_inputs_and_outputs_are_answered_as_if_nothing_was_known(
    pair: Bench, turns: list[Any]
) -> None:
    found = [
        pair.runner.run(Played(pair, PAIR, learns=learns).play(turns)) for learns in (False, True)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("value", ["0", "1"])
def test_another_data_beside_one_that_is_nested_is_no_frame(bench: Bench, value: str) -> None:
    """Though the input is, by chance, what it is tried with."""
    frame = FRAMES[4][:-2] + "]" + ',"data":[%s]}'

    async def main() -> None:
        line = Line(bench)
        for other in (value, value, value, "5"):
            inner, outer = ",".join([value] * 4), ",".join([other] * 4)
            line.protocol.data_received(post((frame % (1, inner, outer)).encode()))
            assert not line.repeated()
            answer = orjson.loads((await line.answer())[0].partition(b"\r\n\r\n")[2])
            wanted = expected(np.array([[float(value)] * 4], np.float32))
            assert answer["outputs"][0]["data"] == wanted[0].tolist()
        line.end()

    bench.runner.run(main())


def test_a_data_that_is_no_inputs_is_no_frame(pair: Bench) -> None:
    async def main() -> None:
        for content, known in ((PAIR, True), (ask_pair("12", "345", ',"data":[1]'), False)):
            line = Line(pair)
            for _ in range(3):
                line.protocol.data_received(content)
                await line.answer()
            assert line.repeated() is known
            line.end()

    pair.runner.run(main())
