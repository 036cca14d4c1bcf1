"""The same questions for programs and assistants, over HTTP and MCP, from one table of tools."""
