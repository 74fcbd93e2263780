from mlctl.core.variables import unknown_variables


def test_variables__misspelt__are_named_with_the_nearest() -> None:
    (sentence,) = unknown_variables({"MLCTL_WORKER": "2", "PATH": "/bin"}, ["workers", "threads"])
    assert sentence == (
        "MLCTL_WORKER is not a setting of mlctl and has no effect; did you mean MLCTL_WORKERS?"
    )


def test_variables__of_mlctl_or_of_librdkafka__are_known() -> None:
    environment = {"MLCTL_HOME": "/x", "MLCTL_WORKERS": "2", "MLCTL_KAFKA_SASL_MECHANISM": "PLAIN"}
    assert unknown_variables(environment, ["workers"]) == []
    assert unknown_variables({"MLCTL_ZZZZZZZZ": ""}, ["workers"]) == [
        "MLCTL_ZZZZZZZZ is not a setting of mlctl and has no effect"
    ]
