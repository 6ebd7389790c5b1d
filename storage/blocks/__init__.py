"""The block layout on disk and the reader that serves it."""
