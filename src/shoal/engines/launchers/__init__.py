"""Launchers that start ranks: torchrun, mpirun and srun. A rank joins the world of all of them."""
