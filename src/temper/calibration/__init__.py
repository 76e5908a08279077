"""Post-hoc calibration: temperature, prediction sets, OOD and shift detection, abstention."""
