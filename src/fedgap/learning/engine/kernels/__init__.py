"""GPU kernels in Triton, which comes with torch's CUDA builds. They are imported only if there is a GPU to run them."""
