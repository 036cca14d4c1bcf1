"""Results as text, tables and pages. No physics here: only numbers that others computed."""
