"""Studies: models compared on the same data at the same budget, over seeds, in one table and one page."""
