"""GPU kernels in Triton, which comes with torch's CUDA builds. Imported only where there is a GPU to run them."""
