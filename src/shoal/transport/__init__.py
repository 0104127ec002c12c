"""How bytes move: frames, and the transports `inproc`, `local` and `tcp` behind one contract."""
