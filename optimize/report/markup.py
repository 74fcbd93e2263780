"""HTML and SVG as values: every text is escaped, so no name from a registry becomes markup."""

from __future__ import annotations

from html import escape

# Elements that HTML closes by themselves.
_VOID = frozenset({"meta"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | None


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """The element `name`; a child that is no `Markup` is text, None is left out.

    Attribute names end in `_` where Python reserves the word, and `_` stands for `-`.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(_attribute(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """The children one after the other."""
    return Markup("".join(text(child) for child in children if child is not None))


def text(content: str) -> Markup:
    """`content` escaped, with control characters, which no page may hold, replaced."""
    if isinstance(content, Markup):
        return content
    printable = (c if c.isprintable() or c in "\n\t" else "\ufffd" for c in content)
    return Markup(escape("".join(printable)))


def _attribute(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
