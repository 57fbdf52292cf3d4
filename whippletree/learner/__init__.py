"""Model, loss, optimiser step, checkpoints, weight publishing."""
