"""SVG elements as escaped markup. Colours come from classes, so that a picture follows the page's light or dark."""

from __future__ import annotations

from markupsafe import Markup, escape


def element(name: str, *content: Markup | str, **attributes: str | float) -> Markup:
    """One element; ``class_`` means class, other underscores mean hyphens, numbers are rounded to a tenth.

    >>> print(element("text", "a < b", x=1.25, text_anchor="end", class_="tick"))
    <text x="1.2" text-anchor="end" class="tick">a &lt; b</text>
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(Markup(key.rstrip("_").replace("_", "-") if key != "viewBox" else key), _value(value))
        for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, Markup("").join(map(escape, content)))


def path(points: list[tuple[float, float]]) -> str:
    """The ``d`` of an unbroken line."""
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def picture(width: float, height: float, label: str, *content: Markup, class_: str = "") -> Markup:
    """A whole picture with its text alternative."""
    return element(
        "svg",
        element("title", label),
        *content,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_label=label,
        class_=class_ or "picture",
    )


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
