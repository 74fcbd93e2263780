import pytest

from mlctl.services.model.run_errors import InputRejectedError, RunError, run_error

INVALID = "2 : INVALID_ARGUMENT"
FAIL = "1 : FAIL"


def kernel(status: str, node: str, message: str) -> str:
    """What ONNX Runtime says of a node that fails."""
    failed = f"Non-zero status code returned while running {node} node. Name:'/a/{node}'"
    return f"[ONNXRuntimeError] : {status} : {failed} Status Message: {message}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (kernel(INVALID, "Gather", "index out of data bounds, idx=9"), "index out of data bounds"),
        (kernel(FAIL, "Concat", "concat.h:1 Non concat axis dimensions must match"), "Non concat"),
        (kernel(FAIL, "MatMul", "helper.h:59 Compute MatMul dimension mismatch"), "MatMul dim"),
        (kernel(FAIL, "Add", "Add: left operand cannot broadcast on dim 1"), "left operand cannot"),
        (
            kernel(FAIL, "Add", "/src/element_wise_ops.h:563 void onnxruntime::Init() false. ")
            + "Attempting to broadcast an axis by a dimension other than 1. 3 by 4\n",
            "Attempting to broadcast an axis",
        ),
        (
            f"[ONNXRuntimeError] : {INVALID} : Got invalid dimensions for input: x\n Got: 5",
            "Got invalid dimensions for input: x",
        ),
        (kernel("6 : RUNTIME_EXCEPTION", "Cast", "stod"), "a text is not a number"),
        (kernel("6 : RUNTIME_EXCEPTION", "Cast", "stoll\n"), "a text is not a number"),
    ],
)
def test_run_error__values_or_sizes_do_not_fit__the_inputs_are_rejected(
    text: str, sentence: str
) -> None:
    error = run_error(Exception(text))
    assert isinstance(error, InputRejectedError)
    assert str(error).startswith(sentence)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "Required inputs (['i']) are missing from input feed ([]).",
        kernel(FAIL, "Reshape", "The input tensor cannot be reshaped to the requested shape"),
        kernel(FAIL, "Conv", "CUDA failure 700: an illegal memory access was encountered"),
        kernel(INVALID, "Expand", "Failed to allocate memory for requested buffer of size 1"),
        kernel("6 : RUNTIME_EXCEPTION", "Tokenizer", "stod"),
        kernel("6 : RUNTIME_EXCEPTION", "Cast", "not implemented"),
    ],
)
def test_run_error__cause_is_unknown__the_inputs_are_not_blamed(text: str) -> None:
    error = run_error(Exception(text))
    assert type(error) is RunError
    assert str(error) == text
