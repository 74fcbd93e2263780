"""`mlctl models`: the models in the registry, and ONNX files into it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlctl.cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from mlctl.registry.catalog import ImportedModel


@click.group(invoke_without_command=True)
@reporting
def models(output: CommandOutput) -> None:
    """List the registered models with their aliases, or import one."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    from mlctl.registry.mlflow_catalog import MlflowCatalog
    from mlctl.registry.tracking import missing_model_hint, registry_address

    rows = MlflowCatalog().list_models()
    if output.as_json:
        output.document({"models": [asdict(row) for row in rows]})
    elif not rows:
        output.note(f"The registry {registry_address()} has no models. {missing_model_hint()}")
    else:
        output.table(
            ("Model", "Version>", "Aliases", "Digest", "Optimized from"),
            (
                (
                    row.name,
                    row.version,
                    " ".join(f"@{alias}" for alias in row.aliases),
                    (row.digest or "")[:12],
                    row.source_uri or "",
                )
                for row in rows
            ),
        )


@models.command("import")
@click.argument("path", metavar="FILE_OR_FOLDER", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="Name of the model in the registry.")
@click.option(
    "--signature",
    "shapes",
    multiple=True,
    metavar="NAME=-1,SIZE,...",
    help="Shape of an input or output, if it differs from the graph's; -1 is any size, the first "
    "is the batch.",
)
@click.option(
    "--constant",
    "constants",
    multiple=True,
    metavar="NAME=VALUE",
    help="Fix an input to one value, such as a threshold or a sampling rate.",
)
@reporting
def import_(
    output: CommandOutput,
    path: Path,
    name: str,
    shapes: tuple[str, ...],
    constants: tuple[str, ...],
) -> None:
    """Register an ONNX file or a text model as the newest version.

    FILE_OR_FOLDER is the file, a folder that holds it, or the folder of a text model.

    A text model, an encoder or a language model, is a folder in Hugging Face's layout: config.json,
    *.safetensors and tokenizer.json.

    \b
    Examples:
      mlctl models import detector.onnx --name detector
      mlctl models import vad.onnx --name vad --constant sr=16000
      mlctl models import cnn.onnx --name cnn --signature image=-1,3,224,224
      mlctl models import llama/ --name llama
    """
    from mlctl.registry.hugging_face import ENCODER_SIGNATURE, SIGNATURE

    imported = _import(output, path, name, shapes, constants)
    if output.as_json:
        signature = imported.signature.model_dump(mode="json")
        output.document(
            {"name": imported.name, "version": imported.version, "uri": imported.uri, **signature}
        )
        return
    output.line(f"{imported.uri} is registered")
    # The outputs of an encoder follow from its task, which `mlctl optimize` reads.
    outputs = () if imported.signature == ENCODER_SIGNATURE else imported.signature.outputs
    output.table(
        ("Tensor", "Datatype", "Shape"),
        (
            (f"{side} {spec.name}", spec.dtype.value, str(list(spec.shape)))
            for side, specs in (
                ("input", imported.signature.inputs),
                ("output", outputs),
            )
            for spec in specs
        ),
    )
    rows = "TEXT.jsonl" if imported.signature == SIGNATURE else "ROWS.npz"
    output.note(f"Next: mlctl optimize {imported.uri} --data {rows}")


def _import(
    output: CommandOutput,
    path: Path,
    name: str,
    shapes: tuple[str, ...],
    constants: tuple[str, ...],
) -> ImportedModel:
    from mlctl.core.packages import installed_version
    from mlctl.registry.hugging_face import TASK, is_text_model, read_folder
    from mlctl.registry.mlflow_catalog import MlflowCatalog
    from mlctl.registry.onnx_import import read_import

    if is_text_model(path):
        if shapes or constants:
            raise click.UsageError("--signature and --constant are for ONNX files")
        folder = read_folder(path, name)
        if folder.task == TASK and installed_version("transformers") is not None:
            from mlctl.optimize.generation.templates import check_chat_template

            check_chat_template(path, path.name)
        with output.working() as show:
            show(f"registering {folder.name}")
            return MlflowCatalog().import_text_model(folder)
    read = read_import(path, name, shapes, constants)
    with output.working() as show:
        show(f"registering {read.name}")
        return MlflowCatalog().import_onnx(read)
