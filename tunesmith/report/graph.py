"""The lineage of a run as SVG: steps with their artifacts, left to right, and who read what."""

from __future__ import annotations

from dataclasses import dataclass, field

from markupsafe import Markup

from tunesmith.lineage.record import Item
from tunesmith.report.formats import last_part, short_digest, size, text
from tunesmith.report.reading import Run, Step
from tunesmith.report.svg import element, picture

_WIDTH, _GAP_X, _GAP_Y, _PAD = 178, 40, 22, 4
_LANE = 9
_HEAD, _ROW = 30, 36
_MAX_NODES = 60


@dataclass(eq=False)
class _Node:
    """A step with what it wrote, or (``step`` None) an artifact that no step of this run wrote."""

    title: str
    step: Step | None
    items: list[Item]
    note: str = ""
    layer: int = 0
    x: float = 0.0
    y: float = 0.0
    parents: list[tuple[_Node, int]] = field(default_factory=list)

    @property
    def height(self) -> float:
        return _HEAD + _ROW * len(self.items) + (18 if self.note else 0)


def lineage(run: Run) -> Markup | None:
    """The graph of what was handed on, or None if no step read or wrote anything."""
    nodes = _nodes(run)[:_MAX_NODES]
    if not nodes:
        return None
    _set_layers(nodes)
    columns = [[node for node in nodes if node.layer == layer] for layer in range(max(n.layer for n in nodes) + 1)]
    columns = [column for column in columns if column]
    heights = [sum(node.height for node in column) + _GAP_Y * (len(column) - 1) for column in columns]
    for index, column in enumerate(columns):
        if index:  # below what they read, so that few lines cross
            column.sort(key=_mean_parent)
        y = _PAD + (max(heights) - heights[index]) / 2
        for node in column:
            node.x, node.y = _PAD + index * (_WIDTH + _GAP_X), y
            y += node.height + _GAP_Y
    width = 2 * _PAD + len(columns) * _WIDTH + (len(columns) - 1) * _GAP_X
    edges, lanes = _edges(nodes, _PAD + max(heights))
    label = f"Lineage: {len(nodes)} steps and sources, left to right; the table of steps below holds the same"
    height = 2 * _PAD + max(heights) + lanes * _LANE
    svg = picture(width, height, label, *edges, *map(_box, nodes), class_="graph")
    return Markup('<div style="width:{}px">{}</div>').format(width, svg)


def _nodes(run: Run) -> list[_Node]:
    steps = [step for step in run.steps if step.last.inputs or step.last.outputs]
    nodes = [_Node(step.task, step, list(step.last.outputs), _note(step)) for step in steps]
    made = {item.uri: (node, row) for node in nodes for row, item in enumerate(node.items)}
    sources: dict[str, _Node] = {}
    for node, step in zip(list(nodes), steps, strict=True):
        for item in step.last.inputs:
            if item.uri not in made and item.uri not in sources:
                sources[item.uri] = _Node("given", None, [item])
            parent = made.get(item.uri) or (sources[item.uri], 0)
            if parent[0] is not node and parent not in node.parents:
                node.parents.append(parent)
    everything = [*sources.values(), *nodes]
    parents = {id(parent) for node in nodes for parent, _ in node.parents}
    # A step that neither read nor passed on anything (a smoke test of a URL, the report) says nothing here.
    return [node for node in everything if node.parents or id(node) in parents] or everything


def _note(step: Step) -> str:
    licence = step.last.details.get("license") or step.last.details.get("licence")
    return f"licence: {text(licence, 40)}" if licence else ""


def _set_layers(nodes: list[_Node]) -> None:
    """Each node right of what it read. Records can hold a circle if somebody made them up; it ends with the rounds."""
    for _ in nodes:
        for node in nodes:
            node.layer = min(max((parent.layer + 1 for parent, _ in node.parents), default=0), len(nodes))


def _mean_parent(node: _Node) -> float:
    return sum(p.y + _row_y(row) for p, row in node.parents) / len(node.parents) if node.parents else 0.0


def _row_y(row: int) -> float:
    return _HEAD + _ROW * row + _ROW / 2


def _edges(nodes: list[_Node], floor: float) -> tuple[list[Markup], int]:
    """The lines, and how many lanes below ``floor`` they take: those over more than one column pass under the boxes."""
    edges, lanes = [], 0
    for node in nodes:
        for parent, row in node.parents:
            if parent not in nodes:
                continue
            is_far = not 0 < node.x - parent.x <= _WIDTH + _GAP_X
            lanes += is_far
            edges.append(_edge(parent, row, node, floor + lanes * _LANE if is_far else None))
    return edges, lanes


def _edge(parent: _Node, row: int, node: _Node, lane: float | None) -> Markup:
    x1, y1 = parent.x + _WIDTH, parent.y + _row_y(row)
    x2, y2 = node.x, node.y + _HEAD / 2
    half = _GAP_X / 2
    if lane is None:
        curve = f"M{x1:.1f},{y1:.1f}C{x1 + half:.1f},{y1:.1f} {x2 - half:.1f},{y2:.1f} {x2 - 5:.1f},{y2:.1f}"
    else:
        down = f"C{x1 + half:.1f},{y1:.1f} {x1:.1f},{lane:.1f} {x1 + half:.1f},{lane:.1f}"
        up = f"C{x2:.1f},{lane:.1f} {x2 - half:.1f},{y2:.1f} {x2 - 5:.1f},{y2:.1f}"
        curve = f"M{x1:.1f},{y1:.1f}{down}L{x2 - half:.1f},{lane:.1f}{up}"
    arrow = f"M{x2 - 7:.1f},{y2 - 4:.1f}L{x2:.1f},{y2:.1f}L{x2 - 7:.1f},{y2 + 4:.1f}z"
    return element("g", element("path", d=curve, class_="edge"), element("path", d=arrow, class_="arrow"))


def _box(node: _Node) -> Markup:
    state = node.step.last.state if node.step else ""
    kind = "node bad" if state and state != "SUCCEEDED" else "node" if node.step else "node given"
    title = node.title if node.step else last_part(node.items[0].uri)
    parts = [
        element("title", f"{title} {state}".strip()),
        element("rect", x=node.x, y=node.y, width=_WIDTH, height=node.height, rx=6, class_=kind),
        _cut(title, node.x + 12, node.y + 20, "head", 14 if state and state != "SUCCEEDED" else 21),
    ]
    if state and state != "SUCCEEDED":
        parts.append(
            element("text", state, x=node.x + _WIDTH - 10, y=node.y + 20, text_anchor="end", class_="badstate")
        )
    for row, item in enumerate(node.items):
        top = node.y + _HEAD + row * _ROW
        parts.append(element("line", x1=node.x, x2=node.x + _WIDTH, y1=top, y2=top, class_="rule"))
        parts.append(_cut(item.name, node.x + 12, top + 15, "item", 13 if item.type else 22))
        what = f"{short_digest(item.digest)} \u00b7 {size(item.bytes)}" if item.digest else "not written"
        parts.append(element("text", what, x=node.x + 12, y=top + 29, class_="digest"))
        if item.type:
            kind = item.type.removeprefix("system.")[:12]
            parts.append(element("text", kind, x=node.x + _WIDTH - 10, y=top + 15, text_anchor="end", class_="type"))
    if node.note:
        parts.append(_cut(node.note, node.x + 12, node.y + node.height - 8, "type", 26))
    return element("g", *parts)


def _cut(whole: str, x: float, y: float, class_: str, limit: int) -> Markup:
    """Text that fits into a box; all of it shows when the pointer rests on it."""
    shown = whole if len(whole) <= limit else f"{whole[: limit - 1]}\u2026"
    return element("text", shown, element("title", whole), x=x, y=y, class_=class_)
