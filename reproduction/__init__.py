"""The papers' tables and figures as studies, with our numbers next to the printed ones."""
