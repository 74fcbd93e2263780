import tracemalloc

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.protocol.json_body import MAX_OBJECTS, MAX_VALUES, parse_object


def test_parse_object__valid_object__is_read() -> None:
    text = '{"id": "a:b", "inputs": [{"name": "x", "parameters": {"k": [1, 2.5, null, true]}}]}'
    assert parse_object(text.encode())["inputs"][0]["parameters"]["k"] == [1, 2.5, None, True]
    assert parse_object(' {"ü": "\\u00fc"} '.encode()) == {"ü": "ü"}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"{}{}", b"{'a': 1}", b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1e999}',
        b'{"a": 01}', b'{"a": [1,]}', b'{"a": "\xff"}', b'{"a": "\\ud800"}', b"\xef\xbb\xbf{}",
        b'{"a": "\n"}', '{"a": 1}'.encode("utf-16"), b'{"a": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_parse_object__invalid_json__is_rejected(content: bytes) -> None:
    with pytest.raises(MlctlError, match=r"not valid JSON \(at character \d+\)") as caught:
        parse_object(content)
    assert caught.value.code is ErrorCode.INVALID_INPUT


@pytest.mark.parametrize("content", [b"[]", b"1", b'"a"', b"null"])
def test_parse_object__no_object__is_rejected(content: bytes) -> None:
    with pytest.raises(MlctlError, match="not a JSON object"):
        parse_object(content)


@pytest.mark.parametrize(
    "content",
    [
        b'{"id": "1", "id": "2"}',
        b'{"inputs": [{"name": "x", "name": "x"}]}',
        b'{"inputs": [{"parameters": {"a": 1, "a": 1}}]}',
        b'{"parameters": {"a": 1, "\\u0061": 2}}',
        b'{"deep": {"er": [[{"a": ":", "a": 2}]]}}',
        b'{"a":1,"b:":{"c":0,"c":1}}',
    ],
)
def test_parse_object__duplicate_key__is_rejected(content: bytes) -> None:
    with pytest.raises(MlctlError, match="is given twice in one object"):
        parse_object(content)


def test_parse_object__colons_in_strings__are_no_keys() -> None:
    for text in (
        '{"a": ":::"}',
        '{"a:b": {"c": {"d": {"e": 1}}}}',
        '{"a": [[{"b": 1}], {"b": 1}]}',
    ):
        assert parse_object(text.encode())
    deep = b'{"a:": ' + b"[" * 1000 + b"]" * 1000 + b"}"
    with pytest.raises(MlctlError, match="nested too deep"):
        parse_object(deep)


def test_parse_object__too_many_values__are_rejected_before_parsing() -> None:
    content = b'{"a": [' + b"[]," * (MAX_VALUES // 2 + 1) + b"0]}"
    tracemalloc.start()
    try:
        with pytest.raises(MlctlError, match=f"limit {MAX_VALUES}") as caught:
            parse_object(content)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(content)
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": [[' + b'{"b": 1},' * MAX_OBJECTS + b"0]]}",
        b'{"a": [' + b"{}," * MAX_OBJECTS + b"0]}",
        b"{" + b",".join(b'"%d": 1' % number for number in range(MAX_OBJECTS)) + b"}",
        b'{"\\\\": "\\"", "a": [' + b"{}," * MAX_OBJECTS + b"0]}",
    ],
    ids=["pairs", "empty", "keys", "escapes"],
)
def test_parse_object__too_many_objects_or_keys__are_rejected(content: bytes) -> None:
    with pytest.raises(MlctlError, match=f"limit {MAX_OBJECTS}") as caught:
        parse_object(content)
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize("text", ["{:", '\\"{:', "\\\\", '{\\"a\\": {\\\\}}'])
def test_parse_object__braces_in_strings__are_no_objects(text: str) -> None:
    texts = ",".join([f'"{text}"'] * MAX_OBJECTS)
    document = parse_object(f'{{"inputs": [{{"data": [{texts}]}}]}}'.encode())
    assert len(document["inputs"][0]["data"]) == MAX_OBJECTS
