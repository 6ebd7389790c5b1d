"""One reader a file format; each offers the same `GraphSource`."""

import os

# Both are read once, when polars is loaded or first used. Its allocator keeps what was freed in the last half second,
# in each of many arenas apart: a table that is read piece by piece took up to six times as much as with one.
_ALLOCATOR = os.environ.get("_RJEM_MALLOC_CONF", "")
if "narenas" not in _ALLOCATOR:
    os.environ["_RJEM_MALLOC_CONF"] = ",".join(filter(None, ("narenas:1", _ALLOCATOR)))
os.environ.setdefault("POLARS_ROW_GROUP_PREFETCH_SIZE", "1")
