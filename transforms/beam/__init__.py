"""What the stages need of Beam beside their own steps."""
