echo done > state
