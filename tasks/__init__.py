"""One pipeline stage each: open the artifact or build it, call down, log."""
