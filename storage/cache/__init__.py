"""Access profiles, cache plans and the memory tiers they fill."""
