"""From records to statements: intervals, tests, tables, claims, costs."""
