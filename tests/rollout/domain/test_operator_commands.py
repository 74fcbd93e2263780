from __future__ import annotations

from mlctl.rollout.domain.operator_commands import OperatorCommand, OperatorRequest, next_request


def requests(*commands: OperatorCommand) -> tuple[OperatorRequest, ...]:
    return tuple(
        OperatorRequest(seq, command, "by hand") for seq, command in enumerate(commands, start=1)
    )


def test_next_request__applied_command__is_not_repeated() -> None:
    asked = requests(OperatorCommand.PAUSE, OperatorCommand.RESUME)
    assert next_request(asked, 0) == asked[0]
    assert next_request(asked, 1) == asked[1]
    assert next_request(asked, 2) is None


def test_next_request__rollback_among_others__comes_first() -> None:
    asked = requests(OperatorCommand.PAUSE, OperatorCommand.FULL, OperatorCommand.ROLLBACK)
    assert next_request(asked, 0) == asked[2]
