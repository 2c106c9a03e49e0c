"""The parts of an offline batch job: rows, their index, the journal, and the shapes of results."""
