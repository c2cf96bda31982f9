"""Where each mark of a figure lies. The templates draw it as SVG; text and colour are theirs.

Why inline SVG by our own templates and not a plotting library: a library lays a figure out once, in fixed units and
fixed colours. Shrunk to a phone its text is 5 px high, so it would have to be embedded twice, and in the dark its paper
stays white. Here every horizontal place is a per cent of the width (SVG allows that for x, width and cx), so one figure
fits 320 and 1400 px with text of constant size, takes its colours from the page's custom properties (dark, print), and
each row is a row of a table that carries its numbers as text for a screen reader. The price is the axis arithmetic below.
"""
