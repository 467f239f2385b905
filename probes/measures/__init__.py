"""What is measured on attention heads, without parameters, and what each measure gives by chance."""
