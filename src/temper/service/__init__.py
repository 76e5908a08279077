"""Predict texts over HTTP (``temper serve``); needs the extra ``serve``.

`batching` joins the requests of many clients into passes of the model, `web` is the application,
`run` binds and stops it.
"""
