"""Charts as SVG: scales, shapes and number texts, for the report and for the page of `mlctl ui`."""
