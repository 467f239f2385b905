"""What is measured on the heads of a model in memory, and how it gets into heads.parquet."""
