"""Load a masked language model: by name, from a folder, from the hub, from a wheel."""

from ..lazy import exports

homes = {"known": "available catalog model_card shipped", "mixture": "MixtureJoint"}
homes |= {"exlm": "ExLM ExLMConfig"}
homes |= {"pair_head": "ConditionalHead PairHead head_card shipped_heads"}
__getattr__, __dir__, __all__ = exports(__name__, homes)
