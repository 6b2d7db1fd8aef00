"""What must be as it was when a model comes back from whoever changed it for a while."""

from typing import Any

import hf_posswap as hp
from hf_posswap.schemes.base import NoInput, NoRotation


def facts(model: Any) -> dict[str, Any]:
    """All but mode and marks of the modules that stand where nothing is computed: those are made anew."""
    own = [m for m in model.modules() if not isinstance(m, (NoInput, NoRotation))]
    return {
        "scheme": hp.scheme_of(model),
        "types": [(path, type(module)) for path, module in model.named_modules()],
        "config": model.config.to_dict(),
        "configs": [id(m.config) for m in model.modules() if hasattr(m, "config")],
        "hooks": [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()],
        "attributes": [sorted(vars(m)) for m in own],
        "parameters": [(id(p), p.requires_grad) for p in model.parameters()],
        "training": [m.training for m in own],
        "keys": list(model.state_dict()),
    }
