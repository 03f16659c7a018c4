"""Acts on the device: the loop, the step, tensors, sampling."""
