"""Several lines of one header are one list, whoever reads it."""

from mlctl.services.online.http.fields import fields_of

LINES = [(b"a", b"1"), (b"b", b"x"), (b"a", b"2"), (b"b", b"x"), (b"c", b""), (b"a", b"1")]


def test_fields_of__fields_of_one_name__are_joined_without_duplicates() -> None:
    assert fields_of(LINES) == {b"a": b"1, 2", b"b": b"x", b"c": b""}
    assert fields_of(LINES[:2]) == {b"a": b"1", b"b": b"x"}
    assert fields_of([]) == {}


def test_fields_of__many_fields__takes_linear_time() -> None:
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
