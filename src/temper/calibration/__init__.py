"""Calibration of a trained model: temperature, prediction sets, anomalies, shifts, abstention."""
