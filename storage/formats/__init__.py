"""One reader a file format; each offers the same `GraphSource`."""
