"""What must hold before a graph is used: export, parity, sizes, row independence."""
