"""``qmaps maps``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from qmaps.cli.options import AsJson
from qmaps.cli.output import print_json, print_lines, print_table
from qmaps.normalize.scale_format import SUFFIXES


def maps(
    spec: Annotated[
        str | None, typer.Argument(help="Show the codebook of this map, such as DE@4s.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List maps and normalizers, or show the codebook of one map.

    Examples:

        qmaps maps

        qmaps maps DE@4s
    """
    from qmaps import maps as all_maps
    from qmaps import normalize
    from qmaps.algebra.spec import parse_map
    from qmaps.maps import _transforms as transforms

    if spec is not None:
        map_ = parse_map(spec)
        values = map_.codebook().tolist()
        if as_json:
            print_json({"map": map_.spec, "values": values})
        else:
            print_table(
                f"{map_.spec}: {len(values)} values",
                ["code", "value"],
                [[str(code), str(value)] for code, value in enumerate(map_.codebook().numpy())],
            )
        return
    rows: list[dict[str, Any]] = []
    for name in all_maps.names():
        cls = all_maps.REGISTRY[name]
        widths = {"su"[not s]: _span(cls.widths_of(s)) for s in cls.signs}
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        rows.append({"map": name, "widths": widths, "fitted": cls.fitted, "about": summary})
    if as_json:
        print_json({"maps": rows, "normalizers": normalize.names()})
        return
    print_table(
        "maps",
        ["map", "signed", "unsigned", "about"],
        [
            [r["map"], r["widths"].get("s", "-"), r["widths"].get("u", "-"), r["about"]]
            for r in rows
        ],
    )
    suffixes = ", ".join(sorted(SUFFIXES))
    print_lines(f"normalizers: {', '.join(normalize.names())}; each but logB<n>, powB<n>r<n> and")
    print_lines(f"  unscaled also with &, and with one of the formats of scales: {suffixes}")
    print_lines(
        f"transforms before a map: {', '.join(transforms.written())}, such as sqrt:linear0@8u"
    )


def _span(widths: range) -> str:
    return f"{widths[0]}" if len(widths) == 1 else f"{widths[0]}-{widths[-1]}"
