"""Dataset declarations, collation and the row contract."""
