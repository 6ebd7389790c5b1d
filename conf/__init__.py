"""What was asked: strict configuration models and presets. Imports nothing of ours."""
