"""Import this module to register Temper's networks with the auto classes of Transformers."""

import temper.models.classical.networks
import temper.models.mean_pooled
import temper.models.multi_task  # noqa: F401
