"""Folders that hold a model: their files, their record, and what identifies their weights."""
