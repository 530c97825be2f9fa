"""What happened: time lines, recordings, histories and totals, one struct per fact, for plans and runs alike."""
