"""What is measured on the heads of a model in memory, and how it is written into heads.parquet."""
