"""What is done with finished datasets: opened, compared, verified, exported, shown. Beam-free."""
