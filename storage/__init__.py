"""Where bytes live: files and formats, the graph store, block I/O, memory tiers and cache plans."""
