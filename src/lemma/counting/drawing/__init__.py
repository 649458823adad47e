"""The drawing of a module: its data flow with every size as a formula (problem E2).

`tracing` records the forward pass and fits its shapes, `step_formulas` writes the formula of each step, `layout` places
steps in rows, `scene` draws them and writes SVG.
"""

from lemma.counting.drawing.scene import Drawing, draw

__all__ = ["Drawing", "draw"]
