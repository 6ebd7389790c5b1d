"""The commands of `garden`, one module a topic; each is thin over the layer that does the work."""
