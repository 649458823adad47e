"""Text from a model, token by token through its state, with proof of a loop where there is one."""
