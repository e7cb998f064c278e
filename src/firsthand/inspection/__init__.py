"""Getting to know a robot: push it gently, see how it responds, propose settings."""

from pathlib import Path

from ..runs import atomic, packed
from .excitation import excite as excite
from .inspection import Inspection as Inspection
from .inspection import conclude as conclude
from .recording import Push as Push
from .recording import Recording as Recording
from .settings import InspectionSettings as InspectionSettings


def write_inspection(inspection: Inspection, folder: Path) -> Path:
    """Write inspection.json, recording.safetensors, the figures as PNG and SVG, and index.html; where that is."""
    from ..report.style import save
    from . import figures, page

    drawn = {
        "responses": figures.step_responses(inspection),
        "gains": figures.static_gains(inspection),
        "coupling": figures.coupling_maps(inspection),
    }
    saved = {name: save(figure) for name, figure in drawn.items()}
    atomic.make_folder(folder)
    atomic.write_json(folder / "inspection.json", packed.plain_values(inspection.as_dict(), nonfinite="null"))
    info = {"kind": "inspection", "robot": inspection.robot, "period_s": inspection.spec.period_s}
    atomic.write_bytes(folder / "recording.safetensors", packed.pack(inspection.recording.arrays(), info))
    for name, (png, svg) in saved.items():
        atomic.write_bytes(folder / f"{name}.png", png)
        atomic.write_bytes(folder / f"{name}.svg", svg)
    index = folder / "index.html"
    atomic.write_text(index, page.render(inspection, {name: svg for name, (_, svg) in saved.items()}))
    return index
