"""From a study's file to its runs: setups times masks times seeds."""
