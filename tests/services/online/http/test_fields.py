"""Several lines of one header are one list, whoever reads it."""

from services.online.http.fields import fields_of

LINES = [(b"a", b"1"), (b"b", b"x"), (b"a", b"2"), (b"b", b"x"), (b"c", b""), (b"a", b"1")]


def test_lines_of_one_name_are_a_list_and_equal_ones_are_one() -> None:
    assert fields_of(LINES) == {b"a": b"1, 2", b"b": b"x", b"c": b""}
    assert fields_of(LINES[:2]) == {b"a": b"1", b"b": b"x"}
    assert fields_of([]) == {}


def test_many_lines_are_read_in_the_time_of_their_number() -> None:
    def compared(count: int) -> int:
        seen = 0

        class Name(bytes):
            def __eq__(self, other: object) -> bool:
                nonlocal seen
                seen += 1
                return bytes(self) == other

            __hash__ = bytes.__hash__

        lines = [(Name(b"%d" % (number // 2)), b"%d" % number) for number in range(count)]
        assert len(fields_of(lines)) == count // 2
        return seen

    assert compared(400) < 3 * compared(200)
