"""``temper serve``: predict texts over HTTP."""

from __future__ import annotations

import importlib.util
from functools import partial

from temper.api.keywords import SERVE
from temper.api.nested import check_loadable, refuse
from temper.checkpoints.checkpoint import Checkpoint
from temper.cli import options
from temper.cli.predict import load_classifier
from temper.cli.screen import notice, say
from temper.errors import SettingError, install_command
from temper.service.settings import ServiceSettings
from temper.settings import section

PACKAGES = ("fastapi", "prometheus_client", "uvicorn")


def serve(
    model: options.AnyModel,
    *,
    max_length: options.ModelLength = None,
    gives: options.Gives = None,
    label_names: options.LabelNames = None,
    label_map: options.LabelMap = None,
    trust: options.Trust = None,
    coverage: options.Coverage = None,
    abstain: options.Abstain = None,
    max_risk: options.MaxRisk = None,
    device: options.Device = None,
    backend: options.Backend = "torch",
    batch_size: options.ServedRows = 8,
    host: options.Host = None,
    port: options.Port = None,
    assignments: options.Assignments = None,
) -> None:
    """Serve predictions over HTTP until SIGTERM or Ctrl-C.

    POST /predict takes {"texts": [...]}. /health and /metrics (Prometheus) report the state of the
    server; /openapi.json describes the API. --coverage, --abstain and --max-risk apply to every
    request. If --host is an address that other machines can reach, requests must send the token in
    the environment variable TEMPER_TOKEN.
    """
    tree = options.known_settings(SERVE, locals())
    service = section(ServiceSettings, "service", tree.get("service", {}))
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingError(
            f"`temper serve` needs {', '.join(missing)}, not installed here. "
            f"Run: {install_command('serve')}"
        )
    refuse(partial(check_loadable, Checkpoint(model)))
    from temper.service.run import address_of, bind, token_of_environment
    from temper.service.run import serve as run
    from temper.service.web import Service

    token = token_of_environment()
    with bind(service, token=token) as bound:
        classifier = load_classifier(model, tree, batch_size=batch_size, backend=backend)
        terms = classifier.terms(coverage=coverage, abstain=abstain, max_risk=max_risk)
        web_service = Service(classifier, service, terms, token=token)
        for message in classifier.notices(terms):
            notice(message)
        url = address_of(bound)
        say(f"Serving {model} at {url} (API: {url}/openapi.json)")
        run(
            web_service,
            bound,
            stopped=lambda service: say(
                f"Requests: {service.accepted} accepted, {service.completed} completed."
            ),
        )
