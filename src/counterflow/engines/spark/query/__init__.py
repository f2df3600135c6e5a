"""From DataFrames to the plan that Spark runs."""
