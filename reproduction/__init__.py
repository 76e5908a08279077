"""The papers' tables and figures as studies, and their numbers beside the printed ones."""
