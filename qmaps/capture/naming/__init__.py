"""Names for the parameters of a checkpoint that only numbers them."""
