"""What the laboratory adds to the report's page."""
