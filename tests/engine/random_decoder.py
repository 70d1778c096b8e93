# SPDX-License-Identifier: Apache-2.0
"""Random models of the supported families, as transformers makes them."""

import torch
import transformers


def random_decoder(family, settings, seed):
    """Norms and biases, which begin as ones and zeros, are drawn too: what leaves them out shows."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**settings)
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.normal_(1.0, 0.2)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
    return model
