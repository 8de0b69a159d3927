"""How does a net learn? Solvers, their rules and rates, snapshots, and what is seen of it all."""
