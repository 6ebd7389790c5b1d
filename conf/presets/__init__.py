"""Presets by name, one YAML file each."""
