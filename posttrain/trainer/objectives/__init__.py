"""One module for each family of methods; `algorithms/registry.py` names them, nothing else imports them."""
